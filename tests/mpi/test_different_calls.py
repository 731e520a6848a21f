"""Calls that the MPI library carries out, with other counts or another root on each rank, are refused on all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import MismatchError

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
