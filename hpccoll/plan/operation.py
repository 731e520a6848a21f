"""The collective operations: the input and output chunks of each rank, and the required contents of the outputs.

In array shapes, P is the number of ranks in an argument `rank`, n the number of all ranks, C the number of chunks per
rank, and K the number of integers in the weight of a contribution (an input chunk of a rank).

`input_mask` selects the chunks that form the input of a rank, and `output_mask` the chunks of its output. `check`,
`replay` and the runtime all read `input_mask` and `output_mask`. In a proof, every contribution has a weight, and a
reduction adds weights, so that the sum of weights in a chunk identifies its contributions. Random weights prove that a
sum has the right contributions; one-hot weights count the contributions of each rank.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError, UnknownNameError
from hpccoll.plan.step import IntArray
from hpccoll.units import format_count

Mask = NDArray[np.bool_]
Weights = NDArray[np.uint64]
# A `Count` is the number of elements of the vector or of every block, or a tuple with the number of each block.
# In an all_to_all, a rank's tuple has the sizes of the n blocks that it sends, then those of the n blocks that it gets.
# A tuple for all ranks (`sizes_by_rank`) has the sizes of the n blocks that rank 0 sends, then those of rank 1, ...
Count: TypeAlias = int | tuple[int, ...]
_NAMES_ELSEWHERE = {"bcast": "broadcast"}  # names of MPI and nccl-tests, in lower case without underscores
# Names of benchmarks of messages between two ranks: nccl-tests' sendrecv_perf, osu_latency and others.
_MESSAGES_ELSEWHERE = {"sendrecv", "send", "recv", "pingpong", "latency", "bw", "bibw", "pt2pt"}


class Operation(Enum):
    """The collective operations, named as in torch.distributed."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    SCAN = "scan"
    EXSCAN = "exscan"
    BARRIER = "barrier"

    __hash__ = object.__hash__  # Enum's hash runs Python code, which would make look-ups of calls slower

    @classmethod
    def from_name(cls, name: str) -> Operation:
        """Return the operation with a name of torch, MPI or nccl-tests, such as `bcast`, or raise UnknownNameError."""
        plain = name.lower().replace("_", "").removeprefix("osu").removesuffix("perf").removesuffix("block")
        for operation in cls:
            if operation.value.replace("_", "") == _NAMES_ELSEWHERE.get(plain, plain):
                return operation
        hint = "hpccoll preflight times messages between two ranks; " if plain in _MESSAGES_ELSEWHERE else ""
        raise UnknownNameError("operation", name, [operation.value for operation in cls], hint)

    @cached_property
    def reduces(self) -> bool:
        """Whether the operation combines data of several ranks by a reduction."""
        return self in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE) or self.is_scan

    @cached_property
    def is_scan(self) -> bool:
        """Whether the result of a rank is a reduction over the lower ranks, with the rank's own data or without it."""
        return self in (Operation.SCAN, Operation.EXSCAN)

    @cached_property
    def has_root(self) -> bool:
        """Whether the operation has a root rank, as a broadcast has."""
        return self in (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)

    @cached_property
    def has_blocks(self) -> bool:
        """Whether the message of the operation consists of n blocks, one per rank, rather than of one vector."""
        blocked = (Operation.REDUCE_SCATTER, Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER)
        return self in (*blocked, Operation.ALL_TO_ALL)

    def message_chunks(self, n: int, chunks: int) -> int:
        """Return how many of a rank's chunks make up the message; the other chunks are outputs and work space."""
        if self is Operation.EXSCAN:
            return chunks // 2
        return n if self is Operation.ALL_TO_ALL else chunks

    def message_bytes(self, count: Count, itemsize: int, n: int) -> int:
        """Return the message size S in bytes, as nccl-tests defines it, for `count` elements per vector or block."""
        if isinstance(count, tuple):
            return sum(count) * itemsize
        return 0 if self is Operation.BARRIER else count * itemsize * (n if self.has_blocks else 1)

    def count_elements(self, nbytes: int, itemsize: int, n: int) -> int:
        """Return the largest count of elements per vector or block for which the message has at most `nbytes` bytes.

        A positive `nbytes` gives at least 1 element, even if the message is then larger; a barrier has 0 elements.
        """
        if self is Operation.BARRIER:
            return 0
        return max(nbytes // (itemsize * (n if self.has_blocks else 1)), min(nbytes, 1))

    def validate_chunks(self, n: int, chunks: int) -> None:
        """Raise PlanError unless a plan of this operation on n ranks may have `chunks` chunks per rank."""
        if self is Operation.ALL_TO_ALL:
            fits = chunks % n == 0 and chunks >= 2 * n
        elif self is Operation.EXSCAN:
            fits = chunks % 2 == 0 and chunks >= 2
        elif self.has_blocks:
            fits = chunks % n == 0 and chunks >= n
        else:
            fits = chunks >= (0 if self is Operation.BARRIER else 1)
        if not fits:
            raise PlanError(f"{self.value} over {format_count(n, 'rank')} cannot have {chunks} chunks per rank")

    def chunk_sizes(self, count: Count, n: int, chunks: int) -> IntArray:
        """Return the number of elements in each chunk of a rank, for `count` elements per vector or block.

        If `count` is a tuple, it has the size of each block; in an all_to_all, the sizes of the n blocks that the rank
        sends, then of the n blocks that it receives.
        """
        if self is Operation.BARRIER:
            return np.zeros(chunks, np.int64)
        if self is Operation.ALL_TO_ALL:
            if isinstance(count, int):
                return np.full(chunks, count, np.int64)
            if chunks != len(count):
                raise PlanError(
                    f"an all_to_all with {chunks} chunks per rank needs blocks of equal size; blocks of different "
                    f"sizes need a plan with {2 * n} chunks per rank"
                )
            return np.array(count, np.int64)
        if isinstance(count, tuple):
            return np.concatenate([_cut_evenly(part, chunks // n) for part in count])
        repeats = n if self.has_blocks else 2 if self is Operation.EXSCAN else 1
        return np.tile(_cut_evenly(count, chunks // repeats), repeats)

    def sizes_by_rank(self, count: Count, n: int, chunks: int) -> IntArray:
        """Return the number of elements in each chunk of each rank, shape (n, chunks).

        In an all_to_all with blocks of different sizes, `count` has the sizes of the n blocks of rank 0, then those of
        the n blocks of rank 1, and so on; in all other cases, `count` is the number of elements per vector or block, or
        a tuple with the size of each block.
        """
        if self is Operation.ALL_TO_ALL and isinstance(count, tuple):
            sent = np.array(count, np.int64).reshape(n, n)
            rows = np.concatenate([sent, sent.T], axis=1)
            return np.stack([self.chunk_sizes(tuple(row), n, chunks) for row in rows.tolist()])
        return np.broadcast_to(self.chunk_sizes(count, n, chunks), (n, chunks))

    @lru_cache(maxsize=32)
    def layout_classes(self, counts: tuple[Count, ...], n: int, chunks: int) -> IntArray:
        """Return a class number for each chunk; chunks of one class have equal sizes for every count in `counts`.

        The shape of the result is (chunks,), or (n, chunks) if the sizes of a chunk differ by rank, as in an all_to_all
        with blocks of different sizes.
        """
        by_rank = self is Operation.ALL_TO_ALL and any(isinstance(count, tuple) for count in counts)
        sizes = self.sizes_by_rank if by_rank else self.chunk_sizes
        rows = [sizes(count, n, chunks).reshape(-1) for count in counts]
        layouts = np.array(rows, np.int64).reshape(len(rows), n * chunks if by_rank else chunks)
        classes = np.unique(layouts, axis=1, return_inverse=True)[1]
        return classes.reshape((n, chunks) if by_rank else chunks)

    def input_mask(self, rank: IntArray, n: int, chunks: int, root: int = 0) -> Mask:
        """Return a mask, shape (len(rank), chunks), of the chunks that each of the ranks `rank` provides as input."""
        return _chunk_mask(_INPUT_AND_OUTPUT[self][0], rank, n, chunks, root)

    def output_mask(self, rank: IntArray, n: int, chunks: int, root: int = 0) -> Mask:
        """Return a mask, shape (len(rank), chunks), of the chunks that form the output of each of the ranks `rank`."""
        return _chunk_mask(_INPUT_AND_OUTPUT[self][1], rank, n, chunks, root)

    def expected_weights(self, weights: Weights, n: int) -> Weights:
        """Return the sum of weights that each output chunk must have at the end of a correct run, shape (n, chunks, K).

        `weights`, shape (n, chunks, K), has K numbers for the contribution of each rank to each chunk. The sums of
        chunks that are not part of an output are meaningless.
        """
        if self is Operation.ALL_TO_ALL:
            moved = np.zeros_like(weights)
            moved[:, n : 2 * n] = weights[:, :n].swapaxes(0, 1)
            return moved
        if self.is_scan:
            up_to_rank = np.cumsum(weights, axis=0, dtype=np.uint64)
            return up_to_rank if self is Operation.SCAN else up_to_rank - weights
        # In gathers and broadcasts, all ranks without input for a chunk add zero to its sum.
        return np.broadcast_to(weights.sum(axis=0, dtype=np.uint64), weights.shape)


def _cut_evenly(count: int, chunks: int) -> IntArray:
    """Return the sizes of the `chunks` chunks into which `count` elements are cut.

    The sizes differ by at most one element.
    """
    return np.diff(np.arange(chunks + 1, dtype=np.int64) * count // chunks)


def _chunk_mask(kind: str, rank: IntArray, n: int, chunks: int, root: int) -> Mask:
    """Return a mask, shape (len(rank), chunks), of the chunks that `kind` names, such as `own`: a rank's own block."""
    chunk, ranks = np.arange(chunks), rank[:, None]
    if kind == "own":
        return np.asarray(chunk // (chunks // n) == ranks)
    if kind == "root":
        return np.broadcast_to(ranks == root, (len(rank), chunks))
    if kind in ("first", "second"):
        return np.broadcast_to((chunk // n) == (kind == "second"), (len(rank), chunks))
    if kind in ("message", "message above rank 0"):
        is_message = np.broadcast_to(chunk < chunks // 2, (len(rank), chunks))
        return is_message if kind == "message" else is_message & (ranks > 0)
    return np.full((len(rank), chunks), kind == "all")


_INPUT_AND_OUTPUT = {
    Operation.ALL_REDUCE: ("all", "all"),
    Operation.REDUCE_SCATTER: ("all", "own"),
    Operation.ALL_GATHER: ("own", "all"),
    Operation.BROADCAST: ("root", "all"),
    Operation.REDUCE: ("all", "root"),
    Operation.GATHER: ("own", "root"),
    Operation.SCATTER: ("root", "own"),
    Operation.ALL_TO_ALL: ("first", "second"),
    Operation.SCAN: ("all", "all"),
    Operation.EXSCAN: ("message", "message above rank 0"),
    Operation.BARRIER: ("none", "none"),
}
