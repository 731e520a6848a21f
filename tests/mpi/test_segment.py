"""Memory that ranks share, as memfds and as files: all ranks see what one writes, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.runtime.node_memory import segment
from hpccoll.runtime.node_memory.segment import DIRECTORY, map_segment
from tests.requirements import skip_or_fail

MEMORY = Path("/dev/shm")
ROOM = 2**20


@pytest.fixture
def directory(comm):
    """A directory that all ranks see, empty."""
    path = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    yield path
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


@pytest.fixture
def small(comm, directory):
    """The same, on a memory file system of ROOM bytes."""
    mounted = False
    if comm.rank == 0 and sys.platform == "linux" and os.geteuid() == 0:
        words = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(directory)]
        mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    if not comm.bcast(mounted):
        skip_or_fail("only root may mount a small file system")
    yield directory
    comm.barrier()
    if comm.rank == 0:
        subprocess.run(["umount", str(directory)], check=True)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def shared(comm, nbytes, environ, *, reserve=True):
    """Map one segment, and check that each rank's part has the values that this rank wrote."""
    before, share = descriptors(), nbytes // comm.size
    memory = map_segment(comm, range(comm.size), share * comm.size, reserve=reserve, environ=environ)
    assert len(memory) == max(share * comm.size, 4096)
    begin = share * comm.rank
    memory[begin : begin + 4] = bytes([comm.rank, 1, 2, 3])
    memory[begin + share - 1] = 100 + comm.rank
    comm.barrier()
    for rank in range(comm.size):
        share_of_rank = memory[share * rank : share * (rank + 1)]
        assert (share_of_rank[:4], share_of_rank[-1]) == (bytes([rank, 1, 2, 3]), 100 + rank)
    assert descriptors() <= before + 1, "more is open than the one that Python keeps for a mapping"
    comm.barrier()
    return memory


def ours(directory):
    """Return the segments with a name, not the recordings that this and other jobs write."""
    names = {path.name for path in directory.iterdir() if path.name.startswith("hpccoll")}
    return [name for name in names if not name.startswith(("hpccoll-recorder-", "hpccoll-profile-"))]


@pytest.mark.parametrize("reserve", [False, True])
def test_nameless_memory_is_seen_by_all(comm, reserve):
    shared(comm, 10_000 * comm.size, {}, reserve=reserve)
    assert not ours(MEMORY)


@pytest.mark.parametrize("way", ["nameless", "files"])
def test_reserved_pages_are_allocated_by_the_ranks_that_will_use_them(comm, directory, way):
    """Each rank faults in its own share, so that its pages lie on its own NUMA node."""
    calls, allocate = [], os.posix_fallocate

    def noted(descriptor, begin, nbytes):
        calls.append((begin, nbytes))
        allocate(descriptor, begin, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", noted)
        shared(comm, 4096 * comm.size, {DIRECTORY: str(directory)} if way == "files" else {})
    assert calls == [(4096 * comm.rank, 4096)]


def test_files_are_seen_by_all_and_lose_their_names(comm, directory):
    memory = shared(comm, 10_000, {DIRECTORY: str(directory)})
    assert not ours(directory)
    with Path("/proc/self/maps").open() as lines:
        assert any(str(directory) in line for line in lines), memory


@pytest.mark.parametrize("way", ["nameless", "files"])
def test_what_is_dropped_is_given_back(comm, directory, way):
    environ = {DIRECTORY: str(directory)} if way == "files" else {}
    shared(comm, 10_000, environ)
    before = descriptors(), mappings()
    for _ in range(5):
        shared(comm, 10_000, environ)
    assert (descriptors(), mappings()) == before


def mappings():
    with Path("/proc/self/maps").open() as lines:
        return sum("hpccoll" in line for line in lines)


def refused(*_):
    raise OSError("refused for this test")


def test_one_rank_without_nameless_memory_brings_all_to_files(comm, monkeypatch):
    if comm.rank == 0:
        monkeypatch.setattr(os, "memfd_create", refused)
    memory = shared(comm, 10_000, {})
    with Path("/proc/self/maps").open() as lines:
        assert any(f"{MEMORY}/hpccoll-" in line for line in lines), memory
    comm.barrier()
    assert not ours(MEMORY)


def test_what_is_another_process_elsewhere_is_not_mapped(comm, monkeypatch):
    """As where ranks have process tables of their own: the number of a process names another one."""
    opened = os.open

    def open_other_memory(path, *how):
        if not str(path).startswith("/proc/"):
            return opened(path, *how)
        other = os.memfd_create("of another process")
        os.ftruncate(other, 2**20)
        return other

    monkeypatch.setattr(os, "open", open_other_memory)
    shared(comm, 10_000, {})
    comm.barrier()
    assert not ours(MEMORY)


def test_a_directory_that_is_too_small_is_told_to_every_rank_with_both_sizes(comm, small):
    with pytest.raises(UnavailableError) as caught:
        map_segment(comm, range(comm.size), 2 * ROOM, reserve=True, environ={DIRECTORY: str(small)})
    told = str(caught.value)
    assert len(set(comm.allgather(told))) == 1
    assert f"need 2 MiB of {small}, which has 1 MiB left" in told
    assert DIRECTORY in told
    comm.barrier()
    assert not list(small.iterdir())


def test_room_that_is_gone_after_it_was_seen_is_told_to_every_rank(comm, small, monkeypatch):
    """As where another process fills the directory between the look at its free space and the allocation."""
    monkeypatch.setattr(segment, "_require", lambda *_: None)
    with pytest.raises(UnavailableError, match=rf"{small} cannot hold .* more \(No space left on device\)") as caught:
        map_segment(comm, range(comm.size), 2 * ROOM, reserve=True, environ={DIRECTORY: str(small)})
    assert len(set(comm.allgather(str(caught.value)))) == 1
    del caught  # its traceback keeps the mappings of the ranks that had room
    gc.collect()
    comm.barrier()
    assert not list(small.iterdir())


def test_a_directory_that_is_not_there_is_told_to_every_rank(comm):
    environ = {DIRECTORY: "/nonexistent/directory" if comm.rank == 0 else "/dev/shm"}
    with pytest.raises(UnavailableError, match="/nonexistent/directory"):
        map_segment(comm, range(comm.size), 5000, reserve=True, environ=environ)
    comm.barrier()
    assert not ours(MEMORY)
