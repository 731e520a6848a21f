"""The arguments of MPI's collectives are in the order of the MPI standard."""

from __future__ import annotations

import numpy as np

from hpccoll.peers import MpiEngine
from hpccoll.plan import Operation
from hpccoll.runtime import job


def test_arguments_are_in_the_order_of_the_standard():
    mpi = job.load_mpi()
    order = MpiEngine(mpi.COMM_SELF)._order_arguments
    source, result, op, root = "source", "result", mpi.SUM, 3
    assert order(Operation.ALL_REDUCE, source, result, op, root, in_place=False) == (source, result, op)
    assert order(Operation.ALL_REDUCE, source, result, op, root, in_place=True) == (mpi.IN_PLACE, result, op)
    assert order(Operation.REDUCE, source, None, op, root, in_place=False) == (source, None, op, root)
    assert order(Operation.EXSCAN, source, result, op, root, in_place=False) == (source, result, op)
    assert order(Operation.EXSCAN, source, None, op, root, in_place=False) == (mpi.IN_PLACE, source, op)
    assert order(Operation.GATHER, source, result, None, root, in_place=False) == (source, result, root)
    assert order(Operation.SCATTER, source, result, None, root, in_place=True) == (source, mpi.IN_PLACE, root)
    assert order(Operation.BROADCAST, source, None, None, root, in_place=False) == (source, root)


def test_a_broadcast_and_a_sum_on_one_rank():
    engine, x, out = MpiEngine(job.load_mpi().COMM_SELF), np.arange(3.0), np.zeros(3)
    for operation in (Operation.BROADCAST, Operation.ALL_REDUCE, Operation.SCAN, Operation.ALL_GATHER):
        out[:] = -1
        engine.prepare(operation, x, out, "sum", 0)()
        assert out.tolist() == [0, 1, 2], operation
