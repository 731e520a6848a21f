"""The expected output of a collective, computed from the whole inputs of all ranks and independently of all plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpccoll.measure.data import ExpectedResult, HostArray, expect_reduced
from hpccoll.plan import Operation


def compute_expected_result(
    operation: Operation, inputs: Sequence[HostArray | None], op: str, rank: int, root: int
) -> ExpectedResult | None:
    """Return the expected output of `rank` after the collective `operation`, or None if it has no output.

    Args:
        inputs: every rank's input, 1-D, with all of its blocks; None for a rank without input.
        op: the reduction; ignored unless `operation` reduces.
        root: the root rank; ignored unless `operation` has a root.
    """
    n = len(inputs)
    given = [array for array in inputs if array is not None]
    if operation is Operation.BARRIER or (operation in (Operation.REDUCE, Operation.GATHER) and rank != root):
        return None
    if operation.is_scan:
        below = given[: rank + (operation is Operation.SCAN)]
        return expect_reduced(below, op) if below else None
    if operation.reduces:
        mine = slice(None) if operation is not Operation.REDUCE_SCATTER else _block(given[0], rank, n)
        return expect_reduced([array[mine] for array in given], op)
    if operation in (Operation.BROADCAST, Operation.SCATTER):
        sent = inputs[root]
        if sent is None:
            raise ValueError(f"rank {root} is the root and has no input")
        return ExpectedResult(sent if operation is Operation.BROADCAST else sent[_block(sent, rank, n)])
    if operation is Operation.ALL_TO_ALL:
        return ExpectedResult(np.concatenate([array[_block(array, rank, n)] for array in given]))
    return ExpectedResult(np.concatenate(given))


def _block(array: HostArray, rank: int, n: int) -> slice:
    """Return the indices of block number `rank` in an array of n equal blocks, as a slice."""
    count = len(array) // n
    return slice(rank * count, (rank + 1) * count)
