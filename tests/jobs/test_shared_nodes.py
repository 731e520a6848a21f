"""Jobs on a node where other users put files into the directory of recorder files, or the user removes some."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.launch import run_script

pytestmark = pytest.mark.slow

OTHER = 65534
MEMORY = Path("/dev/shm")  # lists the newest file first, as the crafted file of a test needs it
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in which every user can make files."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        Path(directory).chmod(0o1777)
        yield Path(directory)


FAILS = """
import hpccoll
comm = hpccoll.Communicator()
comm.barrier()
if comm.rank == 1:
    raise ValueError("a fault of rank 1")
comm.barrier()
"""


@as_root
def test_files_of_another_user_do_not_delay_the_end_of_a_job(shared):
    fifo, damaged = shared / "hpccoll-recorder-rank0-1-fifo", shared / "hpccoll-recorder-rank0-1-damaged"
    os.mkfifo(fifo, 0o666)
    damaged.write_bytes(b"hpccrec\n" + bytes(400_000))
    for path in (fifo, damaged):
        os.chown(path, OTHER, OTHER)
    began = time.monotonic()
    done = run_script(FAILS, 3, HPCCOLL_SHARED_DIR=str(shared))
    assert "a fault of rank 1" in done.stderr
    assert done.returncode not in (0, -1)
    assert time.monotonic() - began < 30
    assert fifo.exists()
    assert damaged.exists()


CRAFTED = f"""
import os, struct, time
from hpccoll.runtime.job import load_mpi
from hpccoll.runtime.recorder.flight_recorder import get_recorder
from hpccoll.recordings.process_notes import HELD_AT, MUTEX_AT
world = load_mpi().COMM_WORLD
processes = world.allgather(os.getpid())
if world.rank == 0:
    contents = bytearray(400_000)
    # A robust mutex (kind 16 + 128) whose owner has died, according to its lock word.
    contents[MUTEX_AT : MUTEX_AT + 20] = struct.pack("<5I", 0x40000000, 0, 0, 0, 144)
    contents[HELD_AT] = 1
    path = os.environ["HPCCOLL_SHARED_DIR"] + f"/hpccoll-recorder-rank1-{{processes[1]}}-crafted"
    with open(path, "wb") as file:
        file.write(contents)
    os.chmod(path, 0o666)
    os.chown(path, {OTHER}, {OTHER})
world.Barrier()
import hpccoll
comm = hpccoll.Communicator()
time.sleep(1.0)
comm.barrier()
if comm.rank == 0:
    print([int(each.state) for each in get_recorder().read().notes.observations])
    with open(path, "rb") as file:
        print(file.read() == contents)
comm.barrier()
"""


@as_root
def test_a_crafted_mutex_of_another_user_is_not_locked(shared):
    done = run_script(CRAFTED, 2, HPCCOLL_SHARED_DIR=str(shared))
    assert (done.returncode, done.stdout) == (0, "[]\nTrue\n"), done.stderr


THREAD_ENDS = """
import threading, time
import hpccoll
from hpccoll.runtime.recorder.flight_recorder import get_recorder
made = []
thread = threading.Thread(target=lambda: made.append(hpccoll.Communicator()))
thread.start()
thread.join()
(comm,) = made
time.sleep(1.0)
comm.barrier()
if comm.rank == 0:
    print([int(each.state) for each in get_recorder().read().notes.observations])
comm.barrier()
"""


def test_a_rank_lives_after_the_end_of_the_thread_that_made_its_communicator():
    done = run_script(THREAD_ENDS, 2)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


HANGS = """
import os, time
import hpccoll
comm = hpccoll.Communicator()
comm.barrier()
CHANGE
comm.barrier()
if comm.rank == 1:
    time.sleep(1000)
comm.barrier()
"""
CHANGES = {
    "another working directory": "os.chdir('/')",
    "no recorder files": "[os.unlink(f.path) for f in os.scandir(os.environ['HPCCOLL_RECORDER']) if comm.rank == 0]",
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_time_limit_holds_in_spite_of(change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    done = run_script(HANGS.replace("CHANGE", CHANGES[change]), 2, HPCCOLL_RECORDER="recordings", HPCCOLL_TIMEOUT="1")
    assert time.monotonic() - began < 60
    assert "rank 1 is in no call, and other ranks wait for it" in done.stderr, done.stderr
    assert done.stderr.count("ends the job") == 1
