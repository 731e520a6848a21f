"""The symbolic contents of every rank's chunks while a plan is checked: weights, counts, reduction order, validity.

Shapes: n ranks, C chunks, K weights per contribution, M places (rank, chunk).

Each contribution (rank, chunk) has a random 128-bit weight; the weight of a chunk is the sum of what was reduced into
it. Two different multisets of at most 2**14 contributions have equal weights with probability below 2**-100, so a
repeated, missing or misplaced contribution is found. Weights wrap around (2**64 repetitions weigh nothing), so
contributions are also counted, in floating point, which never wraps: where the count is right, no weight has wrapped.
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
_COPY, _OWN_FIRST = int(Op.COPY), int(Op.OWN_FIRST)  # plain integers: reading an enum member costs a microsecond


def _hash_pair(left: Hashes, right: Hashes) -> Hashes:
    """Return the hash of `left` (+) `right`; it differs from that of `right` (+) `left`."""
    mixed = (left * _LEFT) ^ ((right + _LEFT) * _RIGHT)
    spread: Hashes = mixed ^ (mixed >> _SHIFT)
    return spread


def random_weights(n: int, chunks: int, seed: int = 1) -> Weights:
    """Return a random weight for each contribution, shape (n, C, 2)."""
    return np.random.default_rng(seed).integers(1, 2**64, (n, chunks, 2), dtype=np.uint64)


def one_hot_weights(n: int, chunks: int) -> Weights:
    """Return weights of shape (n, C, n) whose sums count how often each rank contributed to a chunk."""
    return np.broadcast_to(np.eye(n, dtype=np.uint64)[:, None, :], (n, chunks, n))


@dataclass(frozen=True, slots=True)
class SymbolicValues:
    """The contents of M places: weights (M, K), numbers of contributions (M,), hashes of the reduction order (M,)."""

    weights: Weights
    counts: NDArray[np.float64]
    order: Hashes


class SymbolicState:
    """The state of all ranks between two rounds of an operation.

    Arrays of shape (n, C) unless noted: `weights` (n, C, K), `input_weights` (n, C, K), `counts` of contributions,
    `order` hashes, `valid` (chunks that were written or are input). `heard`, shape (n, n), holds for a barrier which
    ranks each rank has heard from; it is None for other operations.
    """

    def __init__(self, operation: Operation, n: int, chunks: int, root: int, weights: Weights) -> None:
        ranks = np.arange(n)
        self.operation, self.n, self.chunks, self.root = operation, n, chunks, root
        self.valid = operation.input_mask(ranks, n, chunks, root).copy()
        self.input_weights = np.where(self.valid[..., None], weights, np.uint64(0))
        self.weights = self.input_weights.copy()
        self.counts = self.valid.astype(np.float64)
        leaves = np.arange(1, n * chunks + 1, dtype=np.uint64).reshape(n, chunks) * _RIGHT
        self.order = np.where(self.valid, leaves, np.uint64(0))
        self.heard = np.eye(n, dtype=np.bool_) if operation is Operation.BARRIER else None
        self._last_index = np.zeros(n * chunks, np.int64)

    def find_repeated(self, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return the indices of list entries whose place occurs again later in the list."""
        flat, index = rank * self.chunks + chunk, np.arange(len(rank))
        self._last_index[flat] = index
        return np.nonzero(self._last_index[flat] != index)[0]

    def read(self, rank: IntArray, chunk: IntArray) -> SymbolicValues:
        """Return the contents of the places."""
        return SymbolicValues(self.weights[rank, chunk], self.counts[rank, chunk], self.order[rank, chunk])

    def receive(self, op: Ints, rank: IntArray, chunk: IntArray, values: SymbolicValues) -> None:
        """Copy or reduce `values` into distinct places; `op` is one for all or has shape (M,)."""
        place = rank, chunk
        if isinstance(op, np.ndarray) and op.any():
            reduced = self._reduce(op == _OWN_FIRST, place, values)
            copied = op == _COPY
            weights = np.where(copied[:, None], values.weights, reduced.weights)
            counts, order = (
                np.where(copied, values.counts, reduced.counts),
                np.where(copied, values.order, reduced.order),
            )
            values = SymbolicValues(weights, counts, order)
        elif not isinstance(op, np.ndarray) and op != _COPY:
            values = self._reduce(op == _OWN_FIRST, place, values)
        self.weights[place], self.counts[place], self.order[place] = values.weights, values.counts, values.order
        self.valid[place] = True

    def _reduce(
        self, own_first: bool | NDArray[np.bool_], place: tuple[IntArray, IntArray], incoming: SymbolicValues
    ) -> SymbolicValues:
        """Return the contents of places after `incoming` is reduced into them; they are not changed."""
        own = self.read(*place)
        if isinstance(own_first, np.ndarray):
            order = np.where(own_first, _hash_pair(own.order, incoming.order), _hash_pair(incoming.order, own.order))
        else:
            order = _hash_pair(own.order, incoming.order) if own_first else _hash_pair(incoming.order, own.order)
        return SymbolicValues(own.weights + incoming.weights, own.counts + incoming.counts, order)
