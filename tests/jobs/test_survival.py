"""Jobs that continue after the death of a rank under Open MPI with ULFM, and the error with another MPI or launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpccoll.runtime.job import get_mpi_library
from tests.jobs.launch import run_script
from tests.jobs.random_kills import find_leftovers, run_job

BENCH = Path(__file__).parents[2] / "bench"
needs_ulfm = pytest.mark.skipif(
    not get_mpi_library().startswith("Open MPI"), reason="only Open MPI goes on after the death of a rank"
)


def run_surviving(script: str, ranks: int, **more: str) -> str:
    """Run a script with ULFM, and return its output; it must end with status 0."""
    done = run_script(script, ranks, launcher=("--with-ft", "ulfm"), **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_ulfm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "mode", "per_node"), [(70, "one", ""), (81, "two", ""), (72, "one", "2"), (73, "make", "")]
)
def test_random_kills(seed, mode, per_node):
    status, output = run_job(seed, 4, mode, **({"HPCCOLL_RANKS_PER_NODE": per_node} if per_node else {}))
    assert status == 0, output
    assert output.count("\nkill ") == (1 if mode == "two" else 2), output
    assert find_leftovers(output, mode) == []


STOPPED = """
import os, signal, time
import numpy as np
import hpccoll

comm = hpccoll.Communicator(on_failure="raise")
comm.barrier()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
began = time.monotonic()
try:
    comm.all_reduce(np.ones(3))
except hpccoll.RankLostError as error:
    assert error.ranks == (1,) and error.operation == "all_reduce", error
    smaller = comm.shrink()
    print("went on", smaller.all_reduce(np.ones(1))[0], time.monotonic() - began < 15)
"""


@needs_ulfm
def test_a_stopped_rank_counts_as_dead():
    assert run_surviving(STOPPED, 3, HPCCOLL_TIMEOUT="2").splitlines() == ["went on 2.0 True"] * 2


SPARES = """
import numpy as np
import hpccoll

for comm in hpccoll.survivors(spares=1):
    with comm:
        for step in range(200):
            comm.all_reduce(np.ones(10))
        print("done", comm.rank, comm.size, comm.all_reduce(np.ones(1))[0])
"""


@needs_ulfm
def test_a_spare_takes_the_place_of_a_dead_rank():
    output = run_surviving(SPARES, 4, HPCCOLL_FAULT="kill:rank=1,call=50")
    assert sorted(output.splitlines()) == ["done 0 3 3.0", "done 1 3 3.0", "done 2 3 3.0"]


FAILED_GROUP = """
import faulthandler, os, signal, time
import hpccoll

faulthandler.dump_traceback_later(30, exit=True)
comm = hpccoll.Communicator(on_failure="raise")
group = comm.split(0)
if comm.rank == 2:
    def die(*arguments):
        time.sleep(0.5)  # the other ranks call MPI_Comm_dup
        os.kill(os.getpid(), signal.SIGKILL)

    hpccoll.communicator.communicator.create_mpi_group = die
try:
    comm.new_group(range(3))
except hpccoll.RankLostError as error:
    print(error.ranks, *(old.shrink().all_reduce(1) for old in (group, comm)))
"""


@needs_ulfm
def test_a_group_that_could_not_be_made_does_not_block_other_communicators():
    assert run_surviving(FAILED_GROUP, 3).splitlines() == ["(2,) 2 2"] * 2


LOST_BEFORE = """
import os, signal
import hpccoll

comm = hpccoll.Communicator(on_failure="raise")
comm.barrier()
if comm.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.cart(1)
except hpccoll.RankLostError as error:
    print(error.ranks, error.operation)
"""


@needs_ulfm
def test_the_error_of_a_grid_that_could_not_be_made_names_the_call():
    assert run_surviving(LOST_BEFORE, 3).splitlines() == ["(2,) cart"] * 2


FAILED_MEMBER = """
import faulthandler
import hpccoll
from hpccoll.communicator import survival

faulthandler.dump_traceback_later(30, exit=True)

def fail(mpi_comm, make, parent):
    make(mpi_comm).discard()
    raise hpccoll.CommunicationError("rank 1 fails after the others")

comm = hpccoll.Communicator(on_failure="raise")
if comm.rank == 1:
    survival.make_or_revoke = fail
try:
    comm.split(0)
except hpccoll.CommunicationError as error:
    print(error)
"""


@needs_ulfm
def test_a_group_that_one_member_could_not_make_is_an_error_on_all_members():
    texts = {"rank 1 fails after the others"} | {
        f"rank {rank}: split failed on another rank; see its error" for rank in (0, 2)
    }
    assert set(run_surviving(FAILED_MEMBER, 3).splitlines()) == texts


BREAK = """
import time
import numpy as np
import hpccoll

for comm in hpccoll.survivors():
    with comm:
        comm.all_reduce(np.ones(10))
    if comm.rank == 1 or {everywhere}:
        break
if not {everywhere}:
    time.sleep(60)
"""


@needs_ulfm
def test_all_ranks_may_leave_the_loop_by_break():
    assert run_surviving(BREAK.format(everywhere=True), 3) == ""


@needs_ulfm
def test_a_break_of_one_rank_ends_the_waits_of_the_others():
    done = run_script(BREAK.format(everywhere=False), 3, launcher=("--with-ft", "ulfm"))
    assert done.returncode == 4
    assert "because rank 1 has left the loop hpccoll.survivors" in done.stderr


BREAK_AFTER_DEATH = """
import time
import numpy as np
import hpccoll

for comm in hpccoll.survivors():
    with comm:
        while True:
            comm.all_reduce(np.ones(10))
    assert comm.lost_ranks == (2,)
    if comm.rank == 1 or {everywhere}:
        break
    time.sleep({delay})
if not {everywhere}:
    time.sleep(60)
"""
AFTER_DEATH = {"HPCCOLL_FAULT": "kill:rank=2,call=20"}


@needs_ulfm
def test_all_ranks_may_leave_the_loop_by_break_after_a_death():
    assert run_surviving(BREAK_AFTER_DEATH.format(everywhere=True, delay=0), 4, **AFTER_DEATH) == ""


@needs_ulfm
@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 2])  # the other ranks wait for rank 1 already, or not yet
def test_a_break_of_one_rank_after_a_death_ends_the_waits_of_the_others(delay):
    script = BREAK_AFTER_DEATH.format(everywhere=False, delay=delay)
    done = run_script(script, 4, launcher=("--with-ft", "ulfm"), **AFTER_DEATH)
    assert done.returncode == 4
    assert "because rank 1 has left the loop hpccoll.survivors" in done.stderr


LATE = """
import time
import numpy as np
import hpccoll

comm = hpccoll.Communicator(on_failure="raise")
comm.barrier()
if comm.rank == 1:
    time.sleep(60)
assert comm.agree(comm.rank == 0) is False
assert comm.agree(True)
smaller = comm.shrink()
print("size", smaller.size)
"""


@needs_ulfm
def test_a_rank_that_does_not_agree_counts_as_dead():
    assert run_surviving(LATE, 3, HPCCOLL_TIMEOUT="2").splitlines() == ["size 2"] * 2


AGREEMENTS = """
import numpy as np
import hpccoll

comm, other = (hpccoll.Communicator(on_failure="raise") for _ in range(2))
for number in range(100_000):
    if number % 50 == 0:
        work = other.all_reduce(np.ones(100_000), async_op=True)
    assert comm.agree(number % 3 or comm.rank) is bool(number % 3), number
    if number % 50 == 49:
        assert (work.wait() == comm.size).all()
print("right")
"""


@needs_ulfm
@pytest.mark.full
def test_agreements_are_right_while_operations_are_in_flight():
    """While another thread called MPI, Open MPI's `MPIX_Comm_agree` returned a wrong flag in most runs."""
    assert run_surviving(AGREEMENTS, 3).splitlines() == ["right"] * 3


DUPLICATES = """
import os, signal, sys, threading, time
from mpi4py import MPI
from hpccoll.failures.fault_tolerance import repair_revocation

print("repaired", repair_revocation(), flush=True)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(10)  # the ranks of a dead one may wait for each other for ever in MPI_Comm_dup
comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 3)
if comm.rank == 1:
    delay_s = 0.05 + 0.01 * MPI.COMM_WORLD.rank
    threading.Thread(target=lambda: (time.sleep(delay_s), os.kill(os.getpid(), signal.SIGKILL))).start()
try:
    while True:
        comm.Dup().Free()
except MPI.Exception:
    pass
os._exit(0)
"""


@needs_ulfm
def test_a_death_does_not_crash_ranks_that_make_communicators():
    """Without `repair_revocation`, a survivor crashes in most runs."""
    done = run_script(DUPLICATES, 9, launcher=("--with-ft", "ulfm"))
    assert done.stdout.count("repaired True") == 9
    assert "Segmentation fault" not in done.stdout + done.stderr


@needs_ulfm
@pytest.mark.slow
def test_the_cost_without_a_death_is_compared(tmp_path):
    path = tmp_path / "cost.jsonl"
    script = [str(BENCH / "failure_cost.py"), "--sizes", "8", "--seconds", "0.05", "--json", str(path)]
    done = run_script(script, 2, launcher=("--with-ft", "ulfm"))
    assert done.returncode == 0, done.stdout + done.stderr
    run, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert run["command"].startswith("mpirun --with-ft ulfm -n 2 python bench/failure_cost.py")
    assert [row["side"] for row in rows[:3]] == [
        'on_failure="end"',
        'on_failure="end", another one (A/A)',
        'on_failure="raise"',
    ]
    assert rows[-1]["kind"] == "failure_watch"


def test_the_error_names_a_command():
    script = (
        "import hpccoll\ntry:\n    hpccoll.Communicator(on_failure='raise')\n"
        "except hpccoll.UnavailableError as error:\n    print(error)"
    )
    done = run_script(script, 2)
    assert "mpirun --with-ft ulfm -n 2 python" in done.stdout
