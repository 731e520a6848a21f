"""One rank fails or ends early while others wait: the job ends and names the rank and its reason."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.depth import keep_every
from tests.jobs.launch import run_script

pytestmark = pytest.mark.slow

SCRIPT = """
import atexit, json, os, sys, time
import numpy as np
import hpccoll
from hpccoll import Communicator

SETUP
comm = Communicator()
rank = comm.rank
x = np.ones(1000)
sys.stdout.write(json.dumps({"process": os.getpid()}) + "\\n")
sys.stdout.flush()

def begin_fault():
    mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line}
    named = sorted(path for path in mapped if path.startswith("/dev/shm/"))
    sys.stdout.write(json.dumps({"mapped": named}) + "\\n")
    sys.stdout.flush()

def main():
    PREPARE
    for number in range(6):
        if rank == GUILTY and number == 3:
            begin_fault()
            FAULT
        CALL

main()
"""
# Preparation, the call that every rank makes six times, the rank at fault, and the number of ranks.
CALLS: dict[str, tuple[str, str, int, int]] = {
    "messages": ("", "comm.all_reduce(x, algorithm='ring')", 1, 3),
    "library": ("", "comm.all_reduce(x, algorithm='mpi')", 1, 2),
    "shared memory": ("", "comm.all_reduce(x, algorithm='shared_two_shot')", 0, 3),
    "new arrays": ("", "comm.all_reduce(np.ones(1000), algorithm='ring')", 2, 4),
    "symmetric": ("s = comm.empty(1000)", "comm.all_reduce(s)", 1, 3),
    "prepared library": ("run = comm.all_reduce_init(x, algorithm='mpi')", "run()", 0, 2),
    "prepared messages": ("run = comm.all_reduce_init(x, algorithm='ring')", "run()", 2, 3),
    "asynchronous": ("", "comm.all_reduce(x, async_op=True).wait()", 1, 3),
    "asynchronous library": ("", "comm.all_reduce(x, algorithm='mpi', async_op=True).wait()", 1, 2),
    "library beside plans": (
        "comm.all_reduce(x, async_op=True).wait()", "comm.all_reduce(x, algorithm='mpi')", 1, 3
    ),
    "recv": ("", "comm.recv(x, 1) if rank == 0 else comm.send(x, 0) if rank == 1 else None", 1, 3),
    "send": (
        "x = np.ones(10**6)", "comm.send(x, 1) if rank == 0 else comm.recv(x, 0) if rank == 1 else None", 1, 2
    ),
    "group": ("group = comm.new_group([0, 2])", "if group: group.all_reduce(x)", 2, 4),
    "barrier": ("", "comm.barrier()", 1, 2),
    "broadcast": ("", "comm.broadcast(x, root=1)", 1, 4),
    "new_group": ("", "comm.new_group([0, 1])", 1, 3),
    "empty": ("", "comm.empty(10)", 0, 2),
    "close": ("comms = [Communicator() for _ in range(6)]", "comms[number].close()", 1, 2),
}  # fmt: skip
FAULTS = {
    "an exception": ("raise ValueError('broken')", 1, "ends the job because of an uncaught exception", "broken"),
    "sys.exit(0)": ("sys.exit(0)", 4, "ended its program by sys.exit(0)", "still wait for it"),
    "sys.exit(3)": ("sys.exit(3)", 4, "ended its program by sys.exit(3)", "still wait for it"),
    "an early return": ("return", 4, "ended its program after", "still wait for it"),
}


@dataclass(frozen=True)
class Ended:
    """A job that ended by itself: its exit status and its standard error."""

    status: int
    report: str


def run_with_fault(fault: str, call: str, ranks: int, guilty: int, prepare: str = "", **more: Any) -> Ended:
    """Run a job in which rank `guilty` has a fault while the others make calls; check for files left in /dev/shm."""
    words = {"PREPARE": prepare or "pass", "CALL": call, "GUILTY": str(guilty), "FAULT": fault}
    words["SETUP"] = more.pop("setup", "")
    script = SCRIPT
    for word, code in words.items():
        script = script.replace(word, code)
    done = run_script(script, ranks, **more)
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('{"process"', '{"mapped"'))]
    processes = {str(each["process"]) for each in printed if "process" in each}
    assert len(processes) == ranks
    left = [path for each in printed for path in each.get("mapped", ()) if Path(path).exists()]
    left += [path.name for path in Path("/dev/shm").glob("hpccoll-*") if processes & set(path.name.split("-"))]
    assert not left, left
    return Ended(done.returncode, done.stderr)


def require_report(ended: Ended, guilty: int, ranks: int, fault: str) -> None:
    """Check the status and the report of a job that ended because of a fault."""
    _, status, *parts = FAULTS[fault]
    assert ended.status == status, ended.report
    assert ended.report.count(f"rank {guilty} of {ranks} on ") == 1, ended.report
    assert all(part in ended.report for part in parts), ended.report
    assert ended.report.count("Traceback") == (fault == "an exception"), ended.report


CASES = [(call, fault) for at, call in enumerate(CALLS) for fault in list(FAULTS)[at % 4 :] + list(FAULTS)[: at % 4]]


@pytest.mark.parametrize(("call", "fault"), keep_every(4, CASES))
def test_the_report_names_the_rank_and_its_reason(call, fault):
    prepare, code, guilty, ranks = CALLS[call]
    ended = run_with_fault(FAULTS[fault][0], code, ranks, guilty, prepare)
    require_report(ended, guilty, ranks, fault)


@pytest.mark.parametrize("fault", keep_every(2, FAULTS))
def test_two_level_plans(fault):
    ended = run_with_fault(
        FAULTS[fault][0], "comm.all_reduce(x, algorithm='hierarchical_ring')", 4, 1, HPCCOLL_RANKS_PER_NODE="2"
    )
    require_report(ended, 1, 4, fault)


@pytest.mark.parametrize("fault", keep_every(3, FAULTS))
def test_files_of_shared_memory_are_gone(fault, tmp_path):
    ended = run_with_fault(
        FAULTS[fault][0], "comm.barrier()", 2, 1, "s = comm.empty(10)", HPCCOLL_SHARED_DIR=str(tmp_path)
    )
    require_report(ended, 1, 2, fault)
    assert not list(tmp_path.iterdir())


def test_compared_arguments_name_the_rank_too():
    ended = run_with_fault("return", "comm.all_reduce(x)", 3, 2, HPCCOLL_DEBUG="1")
    require_report(ended, 2, 3, "an early return")
    assert "(all_reduce)" in ended.report


# A rank that ended early reports only when three ranks have complained, however late their complaints come.
REPORT_THREE = """
from hpccoll.failures.endings import JobEndings
report = JobEndings._report
JobEndings._report = lambda self, complaints: len(complaints) == 3 and report(self, complaints)
"""


def test_the_report_lists_calls_and_waiting_ranks():
    report = run_with_fault("sys.exit('no input')", "comm.barrier()", 4, 2, setup=REPORT_THREE).report
    assert "rank 2 of 4 on " in report
    assert "by sys.exit('no input') after 3 collective calls" in report
    assert "rank 0 in call 4 (barrier), rank 1 in call 4 (barrier), rank 3 in call 4 (barrier)" in report
    assert "abort_on_error=False" in report


OTHER_EXCEPTIONS = {
    "in a with block": ("with comm: raise ValueError('broken')", 1, "ValueError: broken"),
    "in a finally block": (
        "try: raise KeyError('first')\n            finally: raise ValueError('broken')", 1, "ValueError: broken"
    ),
    "interrupted": ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    "text": ("sys.exit('some text')", 4, "some text"),
}  # fmt: skip


@pytest.mark.parametrize("what", keep_every(2, OTHER_EXCEPTIONS))
def test_other_ways_to_fail(what):
    fault, status, part = OTHER_EXCEPTIONS[what]
    ended = run_with_fault(fault, "comm.all_reduce(x)", 2, 1)
    assert ended.status == status, ended.report
    assert "rank 1 of 2 on " in ended.report
    assert part in ended.report


def test_an_earlier_hook_prints_the_exception():
    setup = "sys.excepthook = lambda kind, error, trace: sys.stderr.write(f'own hook: {error}\\n')"
    ended = run_with_fault("raise ValueError('broken')", "comm.barrier()", 2, 0, setup=setup)
    assert (ended.status, ended.report.count("Traceback")) == (1, 0), ended.report
    assert "own hook: broken" in ended.report


def test_a_later_hook_that_captures_the_text_loses_nothing():
    """torch.distributed's hook captures what the earlier hook prints, to print it later with a prefix."""
    prepare = """
    import io
    earlier = sys.excepthook
    def capture(*error):
        sys.stderr = io.StringIO()
        earlier(*error)
    sys.excepthook = capture""".strip()
    ended = run_with_fault("raise ValueError('broken')", "comm.barrier()", 2, 0, prepare)
    require_report(ended, 0, 2, "an exception")


def test_equal_exceptions_of_all_ranks_are_printed_once():
    # Ranks wait so long before they report that rank 0 ends the job first, also on a busy machine.
    wait = "import time\nfrom hpccoll.runtime import job\njob.wait_for_lower_ranks = lambda rank: time.sleep(30 * rank)"
    done = run_script(f"import hpccoll\n{wait}\ncomm = hpccoll.Communicator()\nraise ValueError('broken')", 3)
    assert done.returncode == 1
    assert done.stderr.count("ValueError: broken") == 1, done.stderr
    assert "rank 0 of 3 on " in done.stderr


HANGING_ABORT = """
import ctypes
from hpccoll.runtime import job
remove = job._unlink_mpich_segments
job._unlink_mpich_segments = lambda: (remove(), ctypes.PyDLL(None).sleep(1000))  # holds the GIL, as MPI_Abort does
"""


def test_a_job_ends_although_mpi_abort_hangs():
    ended = run_with_fault("raise ValueError('broken')", "comm.barrier()", 2, 1, setup=HANGING_ABORT)
    # MPICH's mpirun kills rank 0 when it sees the closed connection of rank 1, perhaps before it sees the status of
    # rank 1, and then joins both statuses by "or".
    status = 1 if ended.status == 1 | signal.SIGKILL else ended.status
    require_report(replace(ended, status=status), 1, 2, "an exception")


UNDER_MPI4PY = "import sys, hpccoll\ncomm = hpccoll.Communicator()\nif comm.rank:\n    {}\ncomm.barrier()\n"


def test_an_exception_under_python_m_mpi4py(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNDER_MPI4PY.format("raise ValueError"))
    done = run_script(["-m", "mpi4py", str(script)], 2)
    assert done.returncode == 1
    assert (done.stderr.count("rank 1 of 2 on "), done.stderr.count("Traceback")) == (1, 1), done.stderr


def test_a_status_under_python_m_mpi4py_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNDER_MPI4PY.format("sys.exit(3)"))
    done = run_script(["-m", "mpi4py", str(script)], 2)
    assert done.returncode == 3
    assert "rank 1 of 2 on " in done.stderr
    assert "sys.exit(3)" in done.stderr


def test_a_command_that_raises_on_one_rank_ends():
    script = """
import sys
from mpi4py import MPI
from hpccoll.measure import interleaved
from hpccoll.cli.main import main
if MPI.COMM_WORLD.rank == 1:
    interleaved.InterleavedBenchmark.__init__ = None
sys.exit(main(["bench", "all_reduce", "-b", "8", "-e", "8", "--engine", "mpi,hpccoll"]))
"""
    done = run_script(script, 2)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr


def test_abort_on_error_false_leaves_exceptions_to_python():
    script = """
import hpccoll, time
comm = hpccoll.Communicator(abort_on_error=False)
comm.barrier()
if comm.rank == 1:
    raise ValueError("broken")
time.sleep(2)
print("done")
"""
    done = run_script(script, 2)
    assert done.stdout == "done\n"
    assert done.returncode == 1
    assert "ends the job" not in done.stderr


def test_interactive_python_keeps_its_hooks():
    script = """
import sys
sys.ps1 = ">>> "
before = sys.excepthook, sys.exit
import hpccoll
comm = hpccoll.Communicator()
print(before == (sys.excepthook, sys.exit))
"""
    printed = run_script(script, 2).stdout
    assert (printed.count("True"), printed.count("False")) == (2, 0)  # the lines of two ranks may run together


def test_one_rank_keeps_the_hooks_of_python():
    script = "import sys, hpccoll; hpccoll.Communicator(); print(sys.excepthook is sys.__excepthook__)"
    assert run_script(script, 1).stdout == "True\n"


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
import hpccoll
comm = hpccoll.Communicator()
comm.barrier()
if comm.rank == 1:
    time.sleep(60)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
comm.all_reduce(np.ones(4))
"""


def test_an_interruption_names_the_awaited_rank_and_the_line_of_the_program() -> None:
    done = run_script(INTERRUPTED, 2)
    assert done.returncode == 130
    assert re.search(r"rank 0 of 2 .* was interrupted .* at \S+:\d+ in <module>, in all_reduce: rank 1", done.stderr)
    assert "Traceback" not in done.stderr
