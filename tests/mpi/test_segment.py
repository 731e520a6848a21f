"""Memory that ranks share, as memfds and as files: all ranks see the writes of each rank, and no file remains."""

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
    """An empty directory that all ranks see."""
    path = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    yield path
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


@pytest.fixture
def tmpfs_path(comm, directory):
    """An empty directory that all ranks see, on a tmpfs (memory file system) of ROOM bytes."""
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


def count_descriptors():
    """Return the number of this process's open files."""
    return len(list(Path("/proc/self/fd").iterdir()))


def map_and_check(comm, nbytes, environ, *, reserve=True):
    """Map a segment of `nbytes` bytes; each rank writes its share of it and checks the shares of all ranks."""
    before, share = count_descriptors(), nbytes // comm.size
    memory = map_segment(comm, range(comm.size), share * comm.size, reserve=reserve, environ=environ)
    assert len(memory) == max(share * comm.size, 4096)
    begin = share * comm.rank
    memory[begin : begin + 4] = bytes([comm.rank, 1, 2, 3])
    memory[begin + share - 1] = 100 + comm.rank
    comm.barrier()
    for rank in range(comm.size):
        share_of_rank = memory[share * rank : share * (rank + 1)]
        assert (share_of_rank[:4], share_of_rank[-1]) == (bytes([rank, 1, 2, 3]), 100 + rank)
    assert count_descriptors() <= before + 1, "more files are open than the one that Python keeps for a mapping"
    comm.barrier()
    return memory


def list_segment_names(directory):
    """Return the names of the segments in a directory, without the recordings that this and other jobs write."""
    names = {path.name for path in directory.iterdir() if path.name.startswith("hpccoll")}
    return [name for name in names if not name.startswith(("hpccoll-recorder-", "hpccoll-profile-"))]


@pytest.mark.parametrize("reserve", [False, True])
def test_all_ranks_see_nameless_memory(comm, reserve):
    map_and_check(comm, 10_000 * comm.size, {}, reserve=reserve)
    assert not list_segment_names(MEMORY)


@pytest.mark.parametrize("way", ["nameless", "files"])
def test_reserved_pages_are_allocated_by_the_ranks_that_will_use_them(comm, directory, way):
    """Each rank faults in its own share, so that its pages lie on its own NUMA node."""
    calls, allocate = [], os.posix_fallocate

    def noted(descriptor, begin, nbytes):
        calls.append((begin, nbytes))
        allocate(descriptor, begin, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", noted)
        map_and_check(comm, 4096 * comm.size, {DIRECTORY: str(directory)} if way == "files" else {})
    assert calls == [(4096 * comm.rank, 4096)]


def test_all_ranks_see_files_and_the_files_are_unlinked(comm, directory):
    memory = map_and_check(comm, 10_000, {DIRECTORY: str(directory)})
    assert not list_segment_names(directory)
    with Path("/proc/self/maps").open() as lines:
        assert any(str(directory) in line for line in lines), memory


@pytest.mark.parametrize("way", ["nameless", "files"])
def test_dropped_segments_leave_no_descriptors_and_no_mappings(comm, directory, way):
    environ = {DIRECTORY: str(directory)} if way == "files" else {}
    map_and_check(comm, 10_000, environ)
    before = count_descriptors(), count_mappings()
    for _ in range(5):
        map_and_check(comm, 10_000, environ)
    assert (count_descriptors(), count_mappings()) == before


def count_mappings():
    """Return the number of segments that this process maps."""
    with Path("/proc/self/maps").open() as lines:
        return sum("hpccoll" in line for line in lines)


def refuse(*_):
    """Fail like a system call that is not allowed."""
    raise OSError("refused for this test")


def test_all_ranks_use_files_if_one_rank_has_no_nameless_memory(comm, monkeypatch):
    if comm.rank == 0:
        monkeypatch.setattr(os, "memfd_create", refuse)
    memory = map_and_check(comm, 10_000, {})
    with Path("/proc/self/maps").open() as lines:
        assert any(f"{MEMORY}/hpccoll-" in line for line in lines), memory
    comm.barrier()
    assert not list_segment_names(MEMORY)


def test_memory_of_another_process_with_the_same_pid_is_not_mapped(comm, monkeypatch):
    """In PID namespaces of their own, ranks may find another process under the number of a rank's process."""
    opened = os.open

    def open_other_memory(path, *how):
        if not str(path).startswith("/proc/"):
            return opened(path, *how)
        other = os.memfd_create("of another process")
        os.ftruncate(other, 2**20)
        return other

    monkeypatch.setattr(os, "open", open_other_memory)
    map_and_check(comm, 10_000, {})
    comm.barrier()
    assert not list_segment_names(MEMORY)


def test_every_rank_raises_with_both_sizes_if_the_directory_is_too_small(comm, tmpfs_path):
    with pytest.raises(UnavailableError) as caught:
        map_segment(comm, range(comm.size), 2 * ROOM, reserve=True, environ={DIRECTORY: str(tmpfs_path)})
    told = str(caught.value)
    assert len(set(comm.allgather(told))) == 1
    assert f"need 2 MiB of {tmpfs_path}, which has 1 MiB left" in told
    assert DIRECTORY in told
    comm.barrier()
    assert not list(tmpfs_path.iterdir())


def test_every_rank_raises_if_memory_runs_out_after_the_check(comm, tmpfs_path, monkeypatch):
    """Another process may fill the directory between the check of its free space and the allocation."""
    monkeypatch.setattr(segment, "_require", lambda *_: None)
    with pytest.raises(
        UnavailableError, match=rf"{tmpfs_path} cannot hold .* more \(No space left on device\)"
    ) as caught:
        map_segment(comm, range(comm.size), 2 * ROOM, reserve=True, environ={DIRECTORY: str(tmpfs_path)})
    assert len(set(comm.allgather(str(caught.value)))) == 1
    del caught  # its traceback keeps the mappings of the ranks that had room
    gc.collect()
    comm.barrier()
    assert not list(tmpfs_path.iterdir())


def test_every_rank_raises_if_the_directory_does_not_exist(comm):
    environ = {DIRECTORY: "/nonexistent/directory" if comm.rank == 0 else "/dev/shm"}
    with pytest.raises(UnavailableError, match="/nonexistent/directory"):
        map_segment(comm, range(comm.size), 5000, reserve=True, environ=environ)
    comm.barrier()
    assert not list_segment_names(MEMORY)
