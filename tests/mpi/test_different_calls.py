"""Calls with other counts or roots are refused: by the MPI library on all ranks, by a plan on the receiving rank."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import CommunicationError, MismatchError

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="ranks differ")
COUNT = 20_000  # 160 kB, so that calls are compared also with more ranks than cores


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def gather(hpc, differs):
    return hpc.all_gather(np.ones(COUNT + differs * hpc.rank), algorithm="mpi")


def gather_by_counts(hpc, differs):
    counts = [COUNT + rank + differs * hpc.rank * (rank != hpc.rank) for rank in range(hpc.size)]
    return hpc.all_gather(np.ones(counts[hpc.rank]), counts=counts, algorithm="mpi")


def reduce_scatter(hpc, differs):
    return hpc.reduce_scatter(np.ones(hpc.size * (COUNT + differs * hpc.rank)), algorithm="mpi")


def scatter(hpc, differs):
    x = np.ones((hpc.size, COUNT)) if hpc.rank == 0 else None
    return hpc.scatter(x, out=np.zeros(COUNT + differs * hpc.rank), algorithm="mpi")


def broadcast(hpc, differs):
    return hpc.broadcast(np.full(COUNT, hpc.rank), root=hpc.rank if differs else 0, algorithm="mpi")


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("call", [gather, gather_by_counts, reduce_scatter, scatter, broadcast])
def test_all_ranks_get_an_error_that_names_both_values(hpc, call, known):
    for _ in range(3 * known):
        call(hpc, differs=0)
    name = "root 0; rank 1: root 1" if call is broadcast else r"count [(\d].*; rank 1: count [(\d]"
    with pytest.raises(MismatchError, match=rf"ranks called different collectives: rank 0: {name}"):
        call(hpc, differs=1)
    call(hpc, differs=0)  # the communicator can still be used


def test_a_plan_meets_the_library(hpc):
    algorithm = "shared" if hpc.rank else "mpi"
    with pytest.raises(MismatchError, match=r"rank 0: algorithm mpi; rank 1: algorithm shared"):
        hpc.all_gather(np.ones(COUNT), algorithm=algorithm)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("count", [1, 10, COUNT])
def test_a_message_of_a_plan_that_is_too_short_is_no_result(hpc, count, async_op):
    def reduce(pair):
        value = pair.reduce(np.ones(count + (pair.rank == 0)), root=0, algorithm="tree", async_op=async_op)
        return value.wait() if async_op else value

    if hpc.rank > 1:
        return
    with hpc.new_group([0, 1]) as pair:  # after the error, further ranks would wait for rank 0
        if pair.rank:
            reduce(pair)
            return
        with pytest.raises(CommunicationError, match="a message of another rank is shorter than expected"):
            reduce(pair)
