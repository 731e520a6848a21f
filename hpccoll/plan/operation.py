"""What a collective promises: which chunks each rank brings, which it wants, and what must be in them.

Shapes: P ranks of a column, n ranks in all, C chunks a rank, K lanes of weights.

The input of a rank is its held chunks in order, its output its wanted chunks in order: check, replay and the runtime
all read the same two masks. Contributions are named by (rank, chunk) and weighed; `expected_weights` is linear in the
weights, so a sum of random weights proves a multiset and one-hot weights count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError, UnknownNameError
from hpccoll.plan.step import IntArray

Mask = NDArray[np.bool_]
Weights = NDArray[np.uint64]


class Operation(Enum):
    """The collectives, by their torch.distributed names."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"

    @classmethod
    def from_name(cls, name: str) -> Operation:
        """Return the operation of that name, or raise UnknownNameError with the valid ones."""
        for operation in cls:
            if operation.value == name:
                return operation
        raise UnknownNameError("operation", name, [operation.value for operation in cls])

    @property
    def reduces(self) -> bool:
        """Whether contributions are combined."""
        return self in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE)

    @property
    def has_root(self) -> bool:
        """Whether one rank is the root."""
        return self in (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)

    @property
    def has_blocks(self) -> bool:
        """Whether the message is n blocks, one a rank; otherwise it is one vector."""
        blocked = (Operation.REDUCE_SCATTER, Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER)
        return self in (*blocked, Operation.ALL_TO_ALL)

    def message_chunks(self, n: int, chunks: int) -> int:
        """Chunks that make up the message of S bytes (nccl-tests' S); the others are outputs and work space."""
        return n if self is Operation.ALL_TO_ALL else chunks

    def message_bytes(self, count: int, itemsize: int, n: int) -> int:
        """Return the message size S in bytes, as nccl-tests defines it.

        Args:
            count: elements per rank: of its vector, or of one block where the operation has blocks.
            itemsize: bytes per element.
            n: number of ranks.
        """
        return 0 if self is Operation.BARRIER else count * itemsize * (n if self.has_blocks else 1)

    def validate_chunks(self, n: int, chunks: int) -> None:
        """Raise PlanError where `chunks` chunks cannot carry this operation over n ranks."""
        if self is Operation.ALL_TO_ALL:
            fits = chunks % n == 0 and chunks >= 2 * n
        elif self.has_blocks:
            fits = chunks % n == 0 and chunks >= n
        else:
            fits = chunks >= (0 if self is Operation.BARRIER else 1)
        if not fits:
            raise PlanError(f"{self.value} over {n} ranks cannot be carried by {chunks} chunks a rank")

    def chunk_sizes(self, count: int, n: int, chunks: int) -> IntArray:
        """Return the elements in each chunk, shape (C,), for `count` elements a vector or a block."""
        if self is Operation.BARRIER:
            return np.zeros(chunks, np.int64)
        if self is Operation.ALL_TO_ALL:
            return np.full(chunks, count, np.int64)
        parts = chunks // n if self.has_blocks else chunks
        edges = np.arange(parts + 1, dtype=np.int64) * count // parts
        return np.tile(np.diff(edges), n if self.has_blocks else 1)

    def layout_classes(self, counts: Sequence[int], n: int, chunks: int) -> IntArray:
        """Return a number for each chunk, shape (C,): equal where two chunks have equal sizes for all `counts`."""
        rows = [self.chunk_sizes(count, n, chunks) for count in counts]
        layouts = np.array(rows, np.int64).reshape(len(rows), chunks)
        return np.unique(layouts, axis=1, return_inverse=True)[1].reshape(chunks)

    def input_mask(self, rank: IntArray, n: int, chunks: int, root: int = 0) -> Mask:
        """Return which chunks each rank brings, shape (P, C)."""
        return self._mask(rank, n, chunks, _BRINGS[self], root)

    def output_mask(self, rank: IntArray, n: int, chunks: int, root: int = 0) -> Mask:
        """Return which chunks each rank must hold in the end, shape (P, C)."""
        return self._mask(rank, n, chunks, _WANTS[self], root)

    def _mask(self, rank: IntArray, n: int, chunks: int, kind: str, root: int) -> Mask:
        chunk, here = np.arange(chunks), rank[:, None]
        if kind == "own":
            return np.asarray(chunk // (chunks // n) == here)
        if kind == "root":
            return np.broadcast_to(here == root, (len(rank), chunks))
        if kind in ("first", "second"):
            return np.broadcast_to((chunk // n) == (kind == "second"), (len(rank), chunks))
        return np.full((len(rank), chunks), kind == "all")

    def expected_weights(self, weights: Weights, n: int) -> Weights:
        """Return what every place should weigh in the end, shape (n, C, K); only wanted places count.

        Args:
            weights: what each contribution weighs, shape (n, C, K); zero where a rank brings nothing.
        """
        if self is Operation.ALL_TO_ALL:
            moved = np.zeros_like(weights)
            moved[:, n : 2 * n] = weights[:, :n].swapaxes(0, 1)
            return moved
        # Contributions that are not brought weigh nothing, so one sum serves the gathers and the broadcasts too.
        return np.broadcast_to(weights.sum(axis=0, dtype=np.uint64), weights.shape)


_BRINGS = {
    Operation.ALL_REDUCE: "all",
    Operation.REDUCE_SCATTER: "all",
    Operation.ALL_GATHER: "own",
    Operation.BROADCAST: "root",
    Operation.REDUCE: "all",
    Operation.GATHER: "own",
    Operation.SCATTER: "root",
    Operation.ALL_TO_ALL: "first",
    Operation.BARRIER: "none",
}
_WANTS = {
    Operation.ALL_REDUCE: "all",
    Operation.REDUCE_SCATTER: "own",
    Operation.ALL_GATHER: "all",
    Operation.BROADCAST: "all",
    Operation.REDUCE: "root",
    Operation.GATHER: "root",
    Operation.SCATTER: "own",
    Operation.ALL_TO_ALL: "second",
    Operation.BARRIER: "none",
}
