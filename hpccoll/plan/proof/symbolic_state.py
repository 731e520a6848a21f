"""What every rank holds while a plan is checked: weights, order of reduction, validity, and who has heard of whom.

Shapes: n ranks, C chunks, K lanes, M places (rank, chunk).

A contribution (rank, chunk) weighs a random 128-bit number; a chunk weighs the sum of what was reduced into it. Two
different multisets of at most 2**14 contributions weigh the same with probability below 2**-100, so a doubled, lost
or misplaced contribution shows. Weights wrap around (2**64 doublings weigh nothing), so contributions are counted
too, in floating point, which never wraps: where the count is right, no weight wrapped by multiplicity.
The order is a hash that does not commute: equal hashes mean equal expressions, operand by operand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.operation import Operation, Weights
from hpccoll.plan.step import IntArray, Ints, Op

Hashes = NDArray[np.uint64]
_LEFT, _RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)
_COPY, _OWN_FIRST = int(Op.COPY), int(Op.OWN_FIRST)  # plain numbers: reading an enum's member costs a microsecond


def _ordered(left: Hashes, right: Hashes) -> Hashes:
    mixed = (left * _LEFT) ^ ((right + _LEFT) * _RIGHT)
    spread: Hashes = mixed ^ (mixed >> _SHIFT)
    return spread


def random_weights(n: int, chunks: int, seed: int = 1) -> Weights:
    """Return a random weight for each contribution, shape (n, C, 2)."""
    return np.random.default_rng(seed).integers(1, 2**64, (n, chunks, 2), dtype=np.uint64)


def one_hot_weights(n: int, chunks: int) -> Weights:
    """Return weights with one lane a rank, shape (n, C, n): sums count how often each rank contributed."""
    return np.broadcast_to(np.eye(n, dtype=np.uint64)[:, None, :], (n, chunks, n))


@dataclass(frozen=True, slots=True)
class SymbolicValues:
    """What M places hold: weight (M, K), number of contributions (M,), order (M,)."""

    weight: Weights
    many: NDArray[np.float64]
    order: Hashes


class SymbolicState:
    """The state of all ranks between two rounds, and the operation that it must end in."""

    def __init__(self, operation: Operation, n: int, chunks: int, root: int, weights: Weights) -> None:
        ranks = np.arange(n)
        self.operation, self.n, self.chunks, self.root = operation, n, chunks, root
        self.valid = operation.input_mask(ranks, n, chunks, root).copy()
        self.brought = np.where(self.valid[..., None], weights, np.uint64(0))
        self.weight = self.brought.copy()
        self.many = self.valid.astype(np.float64)
        leaves = np.arange(1, n * chunks + 1, dtype=np.uint64).reshape(n, chunks) * _RIGHT
        self.order = np.where(self.valid, leaves, np.uint64(0))
        self.heard = np.eye(n, dtype=np.bool_) if operation is Operation.BARRIER else None
        self._claims = np.zeros(n * chunks, np.int64)

    def repeated(self, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return the indices of places that stand in the list more than once (all but their last)."""
        flat, index = rank * self.chunks + chunk, np.arange(len(rank))
        self._claims[flat] = index
        return np.nonzero(self._claims[flat] != index)[0]

    def read(self, rank: IntArray, chunk: IntArray) -> SymbolicValues:
        """Return what the places hold."""
        return SymbolicValues(self.weight[rank, chunk], self.many[rank, chunk], self.order[rank, chunk])

    def land(self, op: Ints, rank: IntArray, chunk: IntArray, values: SymbolicValues) -> None:
        """Let values arrive at places, each at most once a call; `op` is one for all or has shape (M,)."""
        place = rank, chunk
        if isinstance(op, np.ndarray) and op.any():
            joined = self._joined(op == _OWN_FIRST, place, values)
            copied = op == _COPY
            weight = np.where(copied[:, None], values.weight, joined.weight)
            many, order = np.where(copied, values.many, joined.many), np.where(copied, values.order, joined.order)
            values = SymbolicValues(weight, many, order)
        elif not isinstance(op, np.ndarray) and op != _COPY:
            values = self._joined(op == _OWN_FIRST, place, values)
        self.weight[place], self.many[place], self.order[place] = values.weight, values.many, values.order
        self.valid[place] = True

    def _joined(
        self, own_first: bool | NDArray[np.bool_], place: tuple[IntArray, IntArray], more: SymbolicValues
    ) -> SymbolicValues:
        own = self.read(*place)
        if isinstance(own_first, np.ndarray):
            order = np.where(own_first, _ordered(own.order, more.order), _ordered(more.order, own.order))
        else:
            order = _ordered(own.order, more.order) if own_first else _ordered(more.order, own.order)
        return SymbolicValues(own.weight + more.weight, own.many + more.many, order)
