"""Shared memory of real jobs: nothing is left behind however a job ends, and errors explain why it is not available."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.depth import keep, keep_every
from tests.jobs.launch import BIN, LIMIT_S, environment

pytestmark = pytest.mark.slow

MEMORY = Path("/dev/shm")
BUSY = """
import os, signal, sys, threading
import numpy as np
import hpccoll
comm = hpccoll.Communicator()
x, y = comm.empty(50_000, "float64"), np.ones(50_000)
print("ready", flush=True)
def work(turns):
    for turn in range(turns):
        x[:] = 1
        comm.all_reduce(x, algorithm="shared_two_shot")
        comm.all_gather(y, algorithm="shared")
        if turn % 50 == 0:
            comm.empty(1000)[:] = turn
work(100)
ENDING
"""
ENDINGS = {
    "normal": ("comm.close()", 0),
    "not closed": ("pass", 0),
    "exception": ("if comm.rank == 1: raise KeyError('here')\nwork(10**9)", None),
    # Half a second on, in the midst of whatever it is doing by then.
    "killed": (
        "if comm.rank == 1: threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()\nwork(10**9)",
        None,
    ),
}


def job(script: str, ranks: int = 2, *how: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script on some ranks; with `-m mpi4py` an exception on one ends the job."""
    return subprocess.run(
        [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, *how, "-c", script],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def mapped_somewhere(path: Path) -> bool:
    """Whether a process still has this file in its memory: then it belongs to another job."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text():
                return True
        except OSError:  # it has ended meanwhile
            continue
    return False


@contextmanager
def swept() -> Iterator[set[Path]]:
    """Yield the files in the memory file system; at the end remove those that MPI itself has left meanwhile."""
    before = set(MEMORY.iterdir())
    try:
        yield before
    finally:
        for path in set(MEMORY.iterdir()) - before:
            ours = path.name.startswith(("mpich_shm_", "sm_segment.", "vader_segment.", "hpccoll-recorder-"))
            if ours and not mapped_somewhere(path):
                path.unlink(missing_ok=True)


CASES = [(ending, way) for ending in ENDINGS for way in ("nameless", "file")]


@pytest.mark.parametrize(("ending", "way"), keep(CASES, {("normal", "file"), ("killed", "nameless")}.__contains__))
def test_no_shared_memory_is_left_behind(ending, way, tmp_path):
    text, status = ENDINGS[ending]
    more = {"HPCCOLL_SHARED_DIR": str(tmp_path)} if way == "file" else {}
    with swept() as before:
        done = job(BUSY.replace("ENDING", text), 2, "-m", "mpi4py", **more)
        new = [path for path in set(MEMORY.iterdir()) - before if path.name.startswith("hpccoll")]
        left = [path.name for path in new if not mapped_somewhere(path) and path.exists()]  # not those of other jobs
        if ending == "killed":  # the recorder files of a killed rank stay for `hpccoll report --crash`
            left = [name for name in left if not name.startswith("hpccoll-recorder-")]
    assert "ready" in done.stdout, done.stderr
    assert done.returncode == status if status is not None else done.returncode, done.stderr
    assert not left
    assert not list(tmp_path.iterdir())


def test_memory_of_files_is_what_ranks_share_when_a_directory_is_named(tmp_path):
    """Or the test above would prove nothing of files."""
    script = """
from pathlib import Path
import hpccoll
comm = hpccoll.Communicator()
x = comm.empty(50_000)
comm.barrier()  # each rank takes its own names away
maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "hpccoll" in line and " rw-s " in line]
maps = [line for line in maps if "hpccoll-recorder" not in line]
print("\\n" + str("DIRECTORY" in "".join(maps) and all("deleted" in line for line in maps)), flush=True)
"""
    done = job(script.replace("DIRECTORY", str(tmp_path)), HPCCOLL_SHARED_DIR=str(tmp_path))
    assert done.stdout.split() == ["True", "True"], done.stderr


FORKED = """
import multiprocessing, os, sys, time, warnings
import numpy as np
import hpccoll
from hpccoll.errors import UsageError
warnings.simplefilter("ignore")
comm = hpccoll.Communicator()
x, shared = np.ones(100), comm.empty(100)
for _ in range(3):
    comm.all_reduce(x)
    comm.all_reduce(shared, algorithm="shared_two_shot")
prepared = comm.all_reduce_init(x)
in_place = comm.all_reduce_init(shared, algorithm="shared_two_shot")
late = comm.irecv(np.zeros(1), comm.rank)
def child():
    try:
        CALL
    except UsageError as error:
        os._exit(7 if f"belongs to process {os.getppid()}" in str(error) else 6 if "fork" in str(error) else 8)
    os._exit(9)
if "FORM" == "fork":
    pid = os.fork()
    if not pid:
        child()
else:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    pid = process.pid
status = None
for _ in range(600):
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        break
    time.sleep(0.05)
else:
    os.kill(pid, 9)
print(f"\\nchild:{os.waitstatus_to_exitcode(status) if ended else 'hung'} ", flush=True)
comm.all_reduce(x)
os._exit(0)
"""
CALLS = {
    "known array": "comm.all_reduce(x)",
    "new array": "comm.all_reduce(np.ones(7), algorithm='ring')",
    "symmetric": "comm.all_reduce(shared, algorithm='shared_two_shot')",
    "asynchronous": "comm.all_reduce(x, async_op=True).wait()",
    "barrier": "comm.barrier()",
    "empty": "comm.empty(5)",
    "prepare": "comm.all_reduce_init(np.ones(3))",
    "message": "comm.isend(x, 0)",
    "group": "comm.new_group([0, 1])",
}
CALLS_ON_HANDLES = {
    "close": ("comm.close()", 7),
    "free": ("comm.free(shared)", 7),
    "prepared messages": ("prepared()", 6),
    "prepared shared memory": ("in_place()", 6),
    "wait": ("late.wait()", 6),
}


@pytest.mark.parametrize("call", keep_every(4, CALLS))
def test_a_forked_child_is_told_whose_the_communicator_is(call):
    done = job(FORKED.replace("CALL", CALLS[call]).replace("FORM", "fork"))
    assert done.stdout.split() == ["child:7"] * 2, done.stdout + done.stderr


@pytest.mark.parametrize("call", keep_every(2, CALLS_ON_HANDLES))
def test_a_forked_child_cannot_use_handles_of_its_parent(call):
    code, status = CALLS_ON_HANDLES[call]
    done = job(FORKED.replace("CALL", code).replace("FORM", "fork"))
    assert done.stdout.split() == [f"child:{status}"] * 2, done.stdout + done.stderr


def test_a_child_of_multiprocessing_is_told_likewise():
    done = job(FORKED.replace("CALL", CALLS["known array"]).replace("FORM", "multiprocessing"))
    assert done.stdout.split() == ["child:7"] * 2, done.stdout + done.stderr


DIFFERENT = """
import sys
import hpccoll
from hpccoll.errors import HpccollError
comm = hpccoll.Communicator()
try:
    comm.empty(SHAPE)
except HpccollError as error:
    print(f"\\n{type(error).__name__} {error}", flush=True)
    comm.barrier()  # or the launcher might end the others before they could speak
    sys.exit(error.exit_status)
"""


@pytest.mark.parametrize(
    ("shape", "kind", "part", "status"),
    keep_every(
        3,
        [
            ("100 + (comm.rank == 2)", "MismatchError", "(101,) of float32", 4),
            ("(10, 10) if comm.rank else (100,)", "MismatchError", "(10, 10) of float32", 4),
            ("8, 'int32' if comm.rank == 1 else 'float32'", "MismatchError", "(8,) of int32", 4),
            ("2**50", "UnavailableError", "which has", 3),
        ],
    ),
)
def test_ranks_that_ask_for_what_cannot_be_all_hear_of_it(shape, kind, part, status):
    done = job(DIFFERENT.replace("SHAPE", shape), ranks=3)
    told = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(told) == 3, done.stdout + done.stderr
    assert all(line.startswith(kind) and part in line for line in told), told
    assert done.returncode == status
