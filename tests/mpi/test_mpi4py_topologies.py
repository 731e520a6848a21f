"""Communicators with topologies under hpccoll.mpi4py have mpi4py's classes and results."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.mpi4py import wrap


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
