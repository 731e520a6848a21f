"""What every rank holds while a plan is checked: weights, order of reduction, validity, and who has heard of whom.

Shapes: n ranks, C chunks, K lanes, M places (rank, chunk).

A contribution (rank, chunk) weighs a random 128-bit number; a chunk weighs the sum of what was reduced into it. Two
different multisets weigh the same with probability below 2**-100, so a doubled, lost or misplaced contribution shows.
The order is a hash that does not commute: equal hashes mean equal expressions, operand by operand.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.operation import Operation, Weights
from hpccoll.plan.step import IntArray, Op

_LEFT, _RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def _ordered(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (left * _LEFT) ^ ((right + _LEFT) * _RIGHT)
    return mixed ^ (mixed >> np.uint64(29))


def random_weights(n: int, chunks: int, seed: int = 1) -> Weights:
    """Return a random weight for each contribution, shape (n, C, 2)."""
    return np.random.default_rng(seed).integers(1, 2**64, (n, chunks, 2), dtype=np.uint64)


class Ledger:
    """The state of all ranks between two rounds."""

    def __init__(self, operation: Operation, n: int, chunks: int, root: int, weights: Weights) -> None:
        ranks = np.arange(n)
        self.valid = operation.held(ranks, n, chunks, root).copy()
        self.brought = np.where(self.valid[..., None], weights, np.uint64(0))
        self.weight = self.brought.copy()
        leaves = np.arange(1, n * chunks + 1, dtype=np.uint64).reshape(n, chunks) * _RIGHT
        self.order = np.where(self.valid, leaves, np.uint64(0))
        self._claims = np.zeros(n * chunks, np.int64)
        self._width = chunks

    def repeated(self, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return the indices of places that stand in the list more than once (all but their last)."""
        flat, index = rank * self._width + chunk, np.arange(len(rank))
        self._claims[flat] = index
        return np.nonzero(self._claims[flat] != index)[0]

    def read(self, rank: IntArray, chunk: IntArray) -> tuple[Weights, NDArray[np.uint64]]:
        """Return weights (M, K) and orders (M,) of the places."""
        return self.weight[rank, chunk], self.order[rank, chunk]

    def land(
        self, op: IntArray, rank: IntArray, chunk: IntArray, weight: Weights, order: NDArray[np.uint64]
    ) -> None:
        """Let values arrive at places, each at most once a call; `op` has shape (M,) or one element."""
        if not op.any():
            self.weight[rank, chunk], self.order[rank, chunk] = weight, order
        else:
            own = self.order[rank, chunk]
            joined = np.where(op == Op.OWN_FIRST, _ordered(own, order), _ordered(order, own))
            copied = op == Op.COPY
            self.weight[rank, chunk] = np.where(copied[:, None], weight, self.weight[rank, chunk] + weight)
            self.order[rank, chunk] = np.where(copied, order, joined)
        self.valid[rank, chunk] = True
