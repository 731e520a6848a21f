"""Ranks that wait for each other in different calls of one collective: the job ends and names both calls."""

from __future__ import annotations

import pytest

from tests.depth import keep_every
from tests.jobs.launch import run_script

pytestmark = pytest.mark.slow

# The calls of rank 0 and of rank 1, and parts of the report on both. Two plans of messages often fail sooner, because
# their messages have other sizes.
MISTAKES: dict[str, tuple[str, str, str, str]] = {
    "a plan and the library": (
        "comm.all_reduce(x, algorithm='ring')", "comm.all_reduce(x, algorithm='mpi')",
        "call 2 (all_reduce, algorithm ring, ", "call 2 (all_reduce, algorithm mpi, ",
    ),
    "messages and shared memory": (
        "comm.all_reduce(x, algorithm='shared_two_shot')", "comm.all_reduce(x, algorithm='ring')",
        "call 2 (all_reduce, algorithm shared_two_shot, ", "call 2 (all_reduce, algorithm ring, ",
    ),
    "asynchronous": (
        "comm.all_reduce(x, algorithm='ring', async_op=True).wait()", "comm.all_reduce(x, algorithm='mpi')",
        "call 2 (all_reduce, algorithm ring, ", "call 2 (all_reduce, algorithm mpi, ",
    ),
    "one rank has finished its call": (
        "comm.broadcast(x, root=0, algorithm='tree'); comm.barrier()", "comm.empty(3)",
        "call 2 (broadcast, algorithm tree, ", "call 2 (empty)",
    ),
    "a buffer": ("comm.all_reduce(x)", "comm.empty(3)", "call 2 (all_reduce)", "call 2 (empty)"),
    "an end": ("comm.all_reduce(x)", "comm.close()", "call 2 (all_reduce)", "call 2 (close)"),
}  # fmt: skip
SCRIPT = """
import numpy as np
import hpccoll

comm = hpccoll.Communicator()
x = np.ones(1000, np.float32)
comm.barrier()
if comm.rank == 0:
    FIRST
else:
    SECOND
"""
CORRECT = """
import time
import numpy as np
import hpccoll

comm = hpccoll.Communicator()
x, rank, is_late = np.ones(1000, np.float32), comm.rank, comm.rank >= 2
group = comm.split(rank % 2)
time.sleep(5 * is_late)
if rank % 2:
    group.barrier()
else:
    group.all_reduce(x, algorithm="ring")
time.sleep(5 * is_late)
work = comm.all_reduce(x, algorithm="ring", async_op=True)
comm.gather(x, root=1, out=np.empty((4, 1000), np.float32) if rank == 1 else None, algorithm="mpi")
if is_late:
    work.wait()
    comm.recv(x, source=rank - 2)
else:
    comm.send(x, dest=rank + 2)
    work.wait()
time.sleep(5 * is_late)
comm.close()
"""
# Rank 0 is late for calls whose arguments differ, which both ranks catch, and rank 1 is late for the next call.
CAUGHT = """
import time
import numpy as np
import hpccoll

comm = hpccoll.Communicator()
comm.barrier()
time.sleep(4 * (comm.rank == 0))
try:
    comm.all_reduce(np.ones(3)) if comm.rank else comm.all_gather(np.ones(3))
except hpccoll.errors.MismatchError:
    time.sleep(4 * (comm.rank == 1))
    comm.barrier()
comm.close()
"""


@pytest.mark.parametrize("mistake", keep_every(2, MISTAKES))
def test_the_report_names_both_calls(mistake):
    first, second, *calls = MISTAKES[mistake]
    more = {"HPCCOLL_DEBUG": "1"} if mistake in ("a buffer", "an end") else {}
    done = run_script(SCRIPT.replace("FIRST", first).replace("SECOND", second), 2, **more)
    assert done.returncode == 4, done.stderr
    begin = "ends the job: ranks made different calls and wait for each other: rank "
    (line,) = [line for line in done.stderr.splitlines() if begin in line]
    assert all(call in line for call in calls), done.stderr


def test_ranks_that_are_late_and_calls_of_groups_are_no_mistakes():
    done = run_script(CORRECT, 4)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_an_earlier_mistake_that_the_program_caught_ends_no_later_wait():
    done = run_script(CAUGHT, 2, HPCCOLL_DEBUG="1")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
