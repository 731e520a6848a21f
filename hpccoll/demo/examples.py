"""The examples themselves: how many ranks, what each brings, and what they show in two lines.

Values are small enough to follow by eye. In `ring_all_reduce_5` rank r brings (c + 1) 10**r as its chunk c, so the
digits of a sum show the chunk, and how many and which ranks are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Operation

Values = Sequence[Any] | float | None
Array = NDArray[np.float32]

_ONES = ([1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3])
_STEPS = ([1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6])


@dataclass(frozen=True, slots=True)
class Example:
    """One example.

    `brings` holds, for each argument, what each rank passes (None: nothing; a number is passed as it is). `calls` names
    the functions in the in_*.py files, each of which runs on arguments of its own; `titles` are those of the arguments
    and of all that they return. `algorithm` is what the operation's call runs with, and what is drawn; `variable` says
    whether `--algorithm` may name another.
    """

    name: str
    ranks: int
    calls: tuple[str, ...]
    brings: tuple[Sequence[Values], ...]
    titles: tuple[tuple[str, ...], tuple[str, ...]]
    about: tuple[str, str]
    operation: Operation | None = None
    algorithm: str = ""
    variable: bool = True

    def arguments(self, rank: int) -> tuple[Array | float | None, ...]:
        """Return what `rank` passes: new float32 arrays, numbers, or None."""
        return tuple(_argument(each[rank]) for each in self.brings)


def _argument(value: Values) -> Array | float | None:
    return value if value is None or isinstance(value, float) else np.array(value, np.float32)


def _vector(
    name: str, operation: Operation, algorithm: str, brings: Sequence[Values], about: tuple[str, str]
) -> Example:
    titles = (("before",), ("after",))
    return Example(name, len(brings), (operation.value,), (brings,), titles, about, operation, algorithm)


EXAMPLES = (
    _vector(
        "broadcast",
        Operation.BROADCAST,
        "tree",
        ([1, 2, 3, 4, 5], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        ("The root's vector becomes everyone's.", "In a tree, who knows tells one more rank in every step."),
    ),
    _vector(
        "reduce",
        Operation.REDUCE,
        "tree",
        _ONES,
        ("The root gets the element-wise sum of all vectors.", "Only the root's vector changes."),
    ),
    _vector(
        "all_reduce",
        Operation.ALL_REDUCE,
        "ring",
        _ONES,
        (
            "Every rank gets the element-wise sum.",
            "As if a reduce were followed by a broadcast, at less than their cost.",
        ),
    ),
    _vector(
        "gather",
        Operation.GATHER,
        "tree",
        _ONES,
        ("The root collects all vectors, in rank order.", "Nothing is summed; the other ranks get nothing."),
    ),
    _vector(
        "all_gather",
        Operation.ALL_GATHER,
        "ring",
        _ONES,
        ("Every rank collects all vectors, in rank order.", "A gather whose result everyone has."),
    ),
    _vector(
        "scatter",
        Operation.SCATTER,
        "tree",
        (_ONES, None, None),
        ("The root hands row r of its matrix to rank r.", "The gather backwards."),
    ),
    _vector(
        "reduce_scatter",
        Operation.REDUCE_SCATTER,
        "ring",
        ([[1, 2], [1, 4], [1, 8]], [[2, 4], [4, 16], [8, 64]], [[3, 6], [9, 36], [27, 216]]),
        ("Rank r gets the sum of everyone's row r.", "A reduce whose result is dealt out, a row to each rank."),
    ),
    _vector(
        "all_reduce_ranks4",
        Operation.ALL_REDUCE,
        "recursive_doubling",
        ([0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]),
        (
            "Every rank gets the sum, on four ranks.",
            "Recursive doubling: partners at distance 1, then 2, swap what they have.",
        ),
    ),
    _vector(
        "reduce_scatter_ranks2",
        Operation.REDUCE_SCATTER,
        "ring",
        ([[0], [1]], [[1], [2]]),
        ("Row r of the sum goes to rank r: 0 + 1 = 1 and 1 + 2 = 3.", "The first half of an all_reduce."),
    ),
    _vector(
        "all_gather_ranks2",
        Operation.ALL_GATHER,
        "ring",
        ([1], [3]),
        ("What the reduce_scatter left is collected everywhere.", "all_reduce = reduce_scatter, then all_gather."),
    ),
    Example(
        "send_recv_chain",
        3,
        ("send_recv_chain", "send_recv_chain_async"),
        (([100, 200], [0, 0], [0, 0]),),
        (("before",), ("send/recv", "isend/irecv")),
        (
            "Rank 0 sends to 1, which doubles what it got and sends it to 2.",
            "First with send and recv, which wait; then with isend and irecv, while every rank works.",
        ),
    ),
    Example(
        "new_group",
        4,
        ("new_group",),
        (([0], [1], [2], [3]),),
        (("before",), ("sum of the pair", "both sums")),
        (
            "Ranks 0, 1 and ranks 2, 3 are groups of their own, and each sums.",
            "Then every rank learns both sums by a maximum over the world.",
        ),
    ),
    Example(
        "two_broadcasts",
        3,
        ("two_broadcasts",),
        (([1, 2, 3, 4, 5], [0] * 5, [0] * 5), ([0] * 3, [10, 20, 30], [0] * 3)),
        (("x before", "y before"), ("x after", "y after")),
        (
            "x comes from rank 0 and y, of another length, from rank 1.",
            "Both are started before either is waited for; all ranks start them in the same order.",
        ),
        Operation.BROADCAST,
        "tree",
    ),
    Example(
        "weighted_sum",
        4,
        ("weighted_sum",),
        (_STEPS, ([0.3, 0.3, 0.4],) * 4),
        (("before", "weights"), ("after",)),
        (
            "Element j is scaled by weight j before the ranks are summed.",
            "premul_sum does both in one call.",
        ),
        Operation.ALL_REDUCE,
        "recursive_doubling",
    ),
    Example(
        "distributed_softmax",
        4,
        ("distributed_softmax",),
        (_STEPS,),
        (("before",), ("after",)),
        (
            "Softmax over the ranks, element by element: two all_reduces, a maximum and a sum.",
            "Each column sums to 1; the maximum keeps the exponentials from overflowing.",
        ),
        Operation.ALL_REDUCE,
        "recursive_doubling",
    ),
    Example(
        "l2_normalise",
        4,
        ("l2_normalise",),
        (_STEPS,),
        (("before",), ("after",)),
        (
            "Each element is divided by its 2-norm over the ranks: one all_reduce of the squares.",
            "The squares of each column sum to 1.",
        ),
        Operation.ALL_REDUCE,
        "recursive_doubling",
    ),
    Example(
        "barrier_staggered",
        3,
        ("barrier_staggered",),
        ((0.0, 1.0, 2.0),),
        (("comes at, s",), ("leaves at, s",)),
        (
            "Rank r comes r seconds late; nobody leaves before the last has come.",
            "What is above 2 s is the barrier's own cost, and the scheduler's.",
        ),
        Operation.BARRIER,
        "dissemination",
    ),
    Example(
        "send_send_deadlock",
        2,
        ("send_send_deadlock",),
        (([1, 2, 3], [4, 5, 6]), ([0, 0, 0], [0, 0, 0])),
        (("x", "y before"), ("y after",)),
        (
            "Both ranks send first and receive second; a synchronous send ends when its receive is reached.",
            "So neither send ends. Small messages hide it: MPI buffers them, until they are larger.",
        ),
    ),
    Example(
        "ring_all_reduce_5",
        5,
        ("ring_all_reduce_5",),
        (tuple([chunk * 10**rank for chunk in range(1, 6)] for rank in range(5)),),
        (("before",), ("after reduce_scatter", "after all_gather", "all_reduce")),
        (
            "reduce_scatter: each chunk travels once around the ring and is summed; rank r ends with chunk r.",
            "all_gather: every sum travels once around again. Each rank sends 2 (5 - 1) 5/5 = 8 elements.",
        ),
        Operation.ALL_REDUCE,
        "ring",
        variable=False,
    ),
)


def get_example(name: str) -> Example:
    """Return the example of that name, or raise UnknownNameError with the valid ones."""
    for example in EXAMPLES:
        if example.name == name:
            return example
    raise UnknownNameError("example", name, [example.name for example in EXAMPLES])


def find_example(operation: Operation) -> Example | None:
    """Return the example that shows an operation, None where there is none."""
    return next((each for each in EXAMPLES if each.operation is operation and each.variable), None)
