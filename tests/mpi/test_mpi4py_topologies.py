"""Communicators with topologies under hpccoll.mpi4py have mpi4py's classes and results."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.mpi4py import buffer_calls, wrap
from hpccoll.mpi4py.configuration import get_configuration


@pytest.fixture(autouse=True)
def run_first_calls_over_hpccoll(monkeypatch):
    monkeypatch.setattr(get_configuration(), "calls_before", 3)


@pytest.fixture
def grid(comm):
    made = wrap(comm.Dup()).Create_cart([comm.size])
    yield made
    made.Free()


def test_a_distributed_graph_of_a_grid_has_collectives(grid):
    """Open MPI reports the topology of such a communicator as a grid."""
    graph = grid.Create_dist_graph_adjacent([0], [0])
    assert isinstance(graph, MPI.Distgraphcomm)
    for turn in range(6):  # the hpccoll communicator is made in the fourth collective
        x, total = np.full(3, graph.rank + turn), np.zeros(3, np.int64)
        graph.Allreduce(x, total)
        assert total.tolist() == [sum(range(turn, turn + graph.size))] * 3
    graph.Free()


@pytest.mark.needs_ranks(2)
def test_calls_that_are_passed_on_skip_the_reading_of_their_buffers(comm, monkeypatch):
    n, rank, count = comm.size, comm.rank, 2**17
    ours = wrap(comm.Dup())
    block, whole = np.full(count, rank + 1.0), np.repeat(np.arange(1.0, n + 1), count)
    logical = np.array([rank])
    ours.Alltoall(whole, np.empty_like(whole))  # an Alltoall has a communicator of hpccoll after few calls
    for turn in range(6):
        if turn == 5:
            for name in ("broadcast", "gather", "scatter", "collect_blocks", "reduce_vector"):
                monkeypatch.setattr(buffer_calls, name, None)
        copied, gathered, received = block.copy(), np.zeros_like(whole), np.zeros(count)
        everything, exchanged, result = np.zeros_like(whole), np.zeros_like(whole), np.zeros(1, int)
        ours.Bcast(copied, n - 1)
        ours.Gather(block, gathered if rank == n - 1 else None, n - 1)
        ours.Scatter(whole if rank == n - 1 else None, received, n - 1)
        ours.Allgather(block, everything)
        ours.Alltoall(whole, exchanged)
        ours.Allreduce(logical, result, MPI.LAND)
        assert (copied == n).all()
        assert rank != n - 1 or (gathered == whole).all()
        assert (received == rank + 1).all()
        assert (everything == whole).all()
        assert (exchanged == rank + 1).all()
        assert result[0] == 0
    ours.Free()
