"""Memory that ranks share, by nameless memory and by files: what is written is seen, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.runtime.node_memory.segment import DIRECTORY, map_segments

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
        pytest.skip("only root may mount a small file system")
    yield directory
    comm.barrier()
    if comm.rank == 0:
        subprocess.run(["umount", str(directory)], check=True)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def shared(comm, nbytes, environ, *, reserve=True):
    """Map a piece of every rank, and see in each what its owner wrote."""
    here = range(comm.size)
    before = descriptors()
    pieces = map_segments(comm, here, nbytes, reserve=reserve, environ=environ)
    assert list(pieces) == list(here)
    pieces[comm.rank][:4] = bytes([comm.rank, 1, 2, 3])
    pieces[comm.rank][-1] = 100 + comm.rank
    comm.barrier()
    for rank, piece in pieces.items():
        assert (piece[:4], piece[-1]) == (bytes([rank, 1, 2, 3]), 100 + rank)
    assert descriptors() <= before + len(pieces), "more is open than the one that Python keeps for each mapping"
    comm.barrier()
    return pieces


def ours(directory):
    return [path.name for path in directory.iterdir() if path.name.startswith("hpccoll")]


@pytest.mark.parametrize("reserve", [False, True])
def test_nameless_memory_is_seen_by_all_and_may_differ_in_size(comm, reserve):
    pieces = shared(comm, 10_000 + 5000 * comm.rank, {}, reserve=reserve)
    assert [len(piece) for piece in pieces.values()] == [10_000 + 5000 * rank for rank in range(comm.size)]
    assert not ours(MEMORY)


def test_files_are_seen_by_all_and_lose_their_names(comm, directory):
    pieces = shared(comm, 10_000, {DIRECTORY: str(directory)})
    assert not ours(directory)
    with Path("/proc/self/maps").open() as lines:
        assert any(str(directory) in line for line in lines), pieces


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
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(os, "memfd_create", refused)
    pieces = shared(comm, 10_000, {})
    with Path("/proc/self/maps").open() as lines:
        assert any(f"{MEMORY}/hpccoll-" in line for line in lines), pieces
    comm.barrier()
    assert not ours(MEMORY)


def test_what_is_another_process_elsewhere_is_not_map_segments(comm, monkeypatch):
    """As where ranks have process tables of their own: the number of a process names another one."""
    if comm.rank == 0:
        monkeypatch.setattr(os, "getpid", os.getppid)
    shared(comm, 10_000, {})
    comm.barrier()
    assert not ours(MEMORY)


@pytest.mark.parametrize("who", ["every rank", "one rank", "together"])
def test_a_directory_that_is_too_small_is_told_to_every_rank_with_both_sizes(comm, small, who):
    if who == "together" and comm.size == 1:
        pytest.skip("one rank has room enough")
    nbytes = {"every rank": 2 * ROOM, "one rank": 2 * ROOM if comm.rank == 0 else 4096, "together": 3 * ROOM // 4}[who]
    with pytest.raises(UnavailableError) as caught:
        map_segments(comm, range(comm.size), nbytes, reserve=True, environ={DIRECTORY: str(small)})
    told = str(caught.value)
    assert len(set(comm.allgather(told))) == 1
    assert f"of {small}, which has" in told or f"{small} cannot hold 768 KiB more" in told
    if who != "together":
        assert "needs 2 MiB" in told
    assert DIRECTORY in told
    comm.barrier()
    assert not list(small.iterdir())


def test_a_directory_that_is_not_there_is_told_to_every_rank(comm):
    environ = {DIRECTORY: "/nonexistent/directory" if comm.rank == comm.size - 1 else "/dev/shm"}
    with pytest.raises(UnavailableError, match="/nonexistent/directory"):
        map_segments(comm, range(comm.size), 5000, reserve=True, environ=environ)
    comm.barrier()
    assert not ours(MEMORY)
