"""Programs that are legal in MPI end, with operations in flight on one or several communicators or between ranks."""

from __future__ import annotations

import time
import weakref
from itertools import product

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import WaitTimeoutError
from hpccoll.native import configure_progress
from hpccoll.runtime.agreement import wait_for_members
from hpccoll.runtime.messages.mpi_functions import get_mpi_functions
from hpccoll.runtime.progress import Progress
from tests.depth import keep_every
from tests.mpi.random_programs import RandomProgram, import_torch

ALGORITHMS = ["auto", "ring", "shared_two_shot", "hierarchical_ring", pytest.param("mpi", id="library")]
NAMES = ("auto", "ring", "shared_two_shot", "hierarchical_ring", "mpi ")  # pytest-mpi would skip a test with "mpi"
PAIRS = keep_every(3, list(product(NAMES, NAMES)))


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.mark.parametrize("count", [9, 2**19])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.needs_ranks(2)
def test_an_asynchronous_call_does_not_wait_for_other_ranks(hpc, algorithm, count):
    """Rank 0 starts the collective and then sends; rank 1 receives and then starts the collective."""
    x, y = np.ones(count, np.float32), np.full(2**18, hpc.rank, np.float32)
    if hpc.rank == 1:
        hpc.recv(y, 0)
        assert not y.any()
    work = hpc.all_reduce(x, async_op=True, algorithm=algorithm)
    if hpc.rank == 0:
        hpc.send(y, 1)
    assert set(work.wait()) == {hpc.size}


@pytest.mark.parametrize(("algorithm", "blocking"), PAIRS)
@pytest.mark.needs_ranks(3)
def test_blocking_calls_of_a_group_advance_operations_of_the_world(hpc, algorithm, blocking):
    """Rank 1 enters the group's collective first, rank 2 waits for the world's collective first."""
    group = hpc.new_group([1, 2])
    for count in (5, 2**18):
        x, y = np.ones(count, np.float32), np.ones(count, np.float32)
        work = hpc.all_reduce(x, async_op=True, algorithm=algorithm.strip())
        if hpc.rank == 1:
            group.all_reduce(y, algorithm=blocking.strip())
        assert set(work.wait()) == {hpc.size}
        if hpc.rank == 2:
            group.all_reduce(y, algorithm=blocking.strip())
        assert set(y) == {2 if group else 1}
    if group is not None:
        group.close()


@pytest.mark.parametrize("step", ["barrier", "all_reduce", "library", "empty", "new_group"])
@pytest.mark.needs_ranks(2)
def test_a_long_send_in_flight_advances_in_every_wait(hpc, step):
    """Rank 0 has a long send in flight while it waits for rank 1, which receives before it joins."""
    big, x = np.ones(2**22, np.float32), np.ones(2**14, np.float32)
    sent = hpc.isend(big, 1) if hpc.rank == 0 else None
    if hpc.rank == 1:
        hpc.recv(big, 0)
    if step == "barrier":
        hpc.barrier(algorithm="dissemination" if len(hpc._engine.nodes) > 1 else "shared")
    elif step == "all_reduce":
        hpc.all_reduce(x)
    elif step == "library":
        hpc.barrier(algorithm="mpi")
    elif step == "empty":
        hpc.free(hpc.empty(5))
    else:
        hpc.new_group(list(range(hpc.size))).close()
    if sent is not None:
        sent.wait()


def test_making_and_closing_groups_advances_operations_in_flight(hpc):
    """Odd ranks wait for the operation before they join in making the group, even ranks after."""
    for algorithm in ("ring", "shared_two_shot"):
        x = np.ones(2**16, np.float32)
        work = hpc.all_reduce(x, async_op=True, algorithm=algorithm)
        if hpc.rank % 2:
            work.wait()
        group = hpc.new_group(list(range(hpc.size))[::-1])
        y = group.empty(3)
        group.free(y)
        group.close()
        assert set(work.wait()) == {hpc.size}


def test_a_send_whose_handle_is_dropped_keeps_its_memory(hpc):
    n, rank = hpc.size, hpc.rank
    for turn in range(5):
        received = np.zeros(2**18, np.int32)
        arrival = hpc.irecv(received, (rank - 1) % n)
        hpc.isend(np.full(2**18, turn * n + rank, np.int32), (rank + 1) % n)
        np.full(2**18, -1, np.int32)  # would take the place of memory that was freed
        arrival.wait()
        assert set(received) == {turn * n + (rank - 1) % n}


@pytest.mark.parametrize("algorithm", ["shared_two_shot", "ring", pytest.param("mpi", id="library")])
def test_an_operation_in_flight_keeps_its_communicator(comm, algorithm):
    """Also a reduction by a Python function, which the MPI library calls until the operation is done."""
    group = hpccoll.Communicator(comm)
    kept, op = weakref.ref(group), hpccoll.Reduction.from_function(np.maximum, name="largest")
    x = np.full(2**16, comm.rank, np.int32)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.1)
    work = group.all_reduce(x, op, algorithm=algorithm, async_op=True)
    del group
    assert set(work.wait()) == {comm.size - 1}
    assert kept() is None


@pytest.fixture
def spinning(hpc):
    """Configure the progress thread as for two cores per rank."""
    configure_progress(get_mpi_functions(), 2.0)
    yield
    configure_progress(get_mpi_functions(), hpc._engine.progress.cores_per_rank)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_random_programs_give_the_results_computed_from_their_inputs(hpc, seed):
    program = RandomProgram(hpc, seed, torch=import_torch())
    program.run(150)
    program.close()


@pytest.mark.usefixtures("spinning")
def test_random_programs_are_right_while_the_progress_thread_spins(hpc):
    program = RandomProgram(hpc, 3, torch=import_torch())
    program.run(80)
    program.close()


@pytest.mark.usefixtures("spinning")
@pytest.mark.parametrize("count", [9, 2**19])
@pytest.mark.parametrize("algorithm", ["ring", "shared_two_shot"])
def test_a_started_collective_ends_while_every_rank_sleeps(hpc, algorithm, count):
    x = np.ones(count, np.float32)
    work = hpc.all_reduce(x, async_op=True, algorithm=algorithm)
    time.sleep(0.3)
    assert set(x) == {hpc.size}  # before any call could advance it
    work.wait()


class LateProgress(Progress):
    """Waits without end, and then fails as if the deadline had passed just before."""

    def wait_until(self, done):
        """Wait, and raise WaitTimeoutError."""
        super().wait_until(done)
        raise WaitTimeoutError


@pytest.mark.needs_ranks(2)
def test_a_rank_that_arrives_at_the_deadline_is_not_reported_without_a_number(comm):
    progress = LateProgress() if comm.rank == 0 else Progress()
    progress.deadline = np.inf if comm.rank == 0 else time.monotonic() + 0.5
    named = "the last rank" if comm.rank == 0 else "rank 0, or a rank that it waits for,"
    with pytest.raises(WaitTimeoutError, match=f"^{named} has not arrived$"):
        wait_for_members(comm, range(comm.size), progress)
    comm.Barrier()


def test_a_known_library_call_advances_plans_of_python_functions_of_other_communicators(comm):
    plans, other = hpccoll.Communicator(comm), hpccoll.Communicator(comm)
    op, y = hpccoll.Reduction.from_function(np.add, name="added"), np.ones(4)
    for _ in range(3):  # later calls go straight to native code
        other.all_reduce(y, algorithm="mpi")
    x = np.full(2**16, comm.rank)
    work = plans.all_reduce(x, op, algorithm="ring", async_op=True)
    if comm.rank == 0:
        other.all_reduce(y, algorithm="mpi")
    work.wait()
    if comm.rank:
        other.all_reduce(y, algorithm="mpi")
    assert set(x) == {comm.size * (comm.size - 1) // 2}
    plans.close()
    other.close()
