"""The examples of `hpccoll demo`, each with a number of ranks, the ranks' arguments, and a description in two lines.

In the example `ring_all_reduce_5`, chunk c of rank r's vector is (c + 1) * 10**r, so the digits of a sum show the chunk
and the ranks that were added.
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
    """An example of `hpccoll demo`: functions to call on MPI ranks, their arguments, and texts to print.

    Attributes:
        calls: names of the functions in in_*.py that the example runs, each on new copies of the arguments.
        inputs: for each argument of a call, the values of all ranks; a list is passed as an array.
        titles: table headings of the arguments and of all results.
        description: two lines of text.
        operation: the collective that `algorithm` runs; None if the example is not about one collective.
        algorithm: the name of the algorithm that runs the operation, and that `hpccoll demo` draws.
        accepts_algorithm: whether the option `--algorithm` may choose another algorithm.
    """

    name: str
    ranks: int
    calls: tuple[str, ...]
    inputs: tuple[Sequence[Values], ...]
    titles: tuple[tuple[str, ...], tuple[str, ...]]
    description: tuple[str, str]
    operation: Operation | None = None
    algorithm: str = ""
    accepts_algorithm: bool = True

    def make_arguments(self, rank: int) -> tuple[Array | float | None, ...]:
        """Return the arguments of `rank`: new float32 arrays, numbers, or None."""
        return tuple(_make_argument(each[rank]) for each in self.inputs)


def _make_argument(value: Values) -> Array | float | None:
    """Return a new float32 array for a list; return None and numbers unchanged."""
    return value if value is None or isinstance(value, float) else np.array(value, np.float32)


def _make_vector_example(
    name: str, operation: Operation, algorithm: str, inputs: Sequence[Values], description: tuple[str, str]
) -> Example:
    """Return an example with one argument and one result that calls the function with the name of `operation`."""
    titles = (("before",), ("after",))
    return Example(name, len(inputs), (operation.value,), (inputs,), titles, description, operation, algorithm)


EXAMPLES = (
    _make_vector_example(
        "broadcast",
        Operation.BROADCAST,
        "tree",
        ([1, 2, 3, 4, 5], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        ("Every rank gets the root's vector.", "In a tree, each rank that has it sends it to one more rank per step."),
    ),
    _make_vector_example(
        "reduce",
        Operation.REDUCE,
        "tree",
        _ONES,
        ("The root gets the element-wise sum of all vectors.", "Only the root's vector changes."),
    ),
    _make_vector_example(
        "all_reduce",
        Operation.ALL_REDUCE,
        "ring",
        _ONES,
        ("Every rank gets the element-wise sum.", "The result of a reduce and a broadcast, at a lower cost."),
    ),
    _make_vector_example(
        "gather",
        Operation.GATHER,
        "tree",
        _ONES,
        ("The root collects all vectors, in rank order.", "Nothing is summed; the other ranks get nothing."),
    ),
    _make_vector_example(
        "all_gather",
        Operation.ALL_GATHER,
        "ring",
        _ONES,
        ("Every rank collects all vectors, in rank order.", "A gather whose result is on every rank."),
    ),
    _make_vector_example(
        "scatter",
        Operation.SCATTER,
        "tree",
        (_ONES, None, None),
        ("The root sends row r of its matrix to rank r.", "The reverse of a gather."),
    ),
    _make_vector_example(
        "reduce_scatter",
        Operation.REDUCE_SCATTER,
        "ring",
        ([[1, 2], [1, 4], [1, 8]], [[2, 4], [4, 16], [8, 64]], [[3, 6], [9, 36], [27, 216]]),
        ("Rank r gets the sum of all ranks' row r.", "A reduce whose result is scattered, one row per rank."),
    ),
    _make_vector_example(
        "all_reduce_ranks4",
        Operation.ALL_REDUCE,
        "recursive_doubling",
        ([0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]),
        (
            "Every rank gets the sum, on four ranks.",
            "Recursive doubling: partners at distance 1, then 2, exchange their sums.",
        ),
    ),
    _make_vector_example(
        "reduce_scatter_ranks2",
        Operation.REDUCE_SCATTER,
        "ring",
        ([[0], [1]], [[1], [2]]),
        ("Row r of the sum goes to rank r: 0 + 1 = 1 and 1 + 2 = 3.", "The first half of an all_reduce."),
    ),
    _make_vector_example(
        "all_gather_ranks2",
        Operation.ALL_GATHER,
        "ring",
        ([1], [3]),
        ("Every rank collects the results of the reduce_scatter.", "all_reduce = reduce_scatter, then all_gather."),
    ),
    Example(
        "send_recv_chain",
        3,
        ("send_recv_chain", "send_recv_chain_async"),
        (([100, 200], [0, 0], [0, 0]),),
        (("before",), ("send/recv", "isend/irecv")),
        (
            "Rank 0 sends to rank 1, which doubles the vector and sends it to rank 2.",
            "First with blocking send and recv, then with isend and irecv, during which each rank computes.",
        ),
    ),
    Example(
        "new_group",
        4,
        ("new_group",),
        (([0], [1], [2], [3]),),
        (("before",), ("sum of the pair", "both sums")),
        (
            "Ranks 0 and 1 form one group, ranks 2 and 3 another; each group sums.",
            "Then a maximum over all ranks gives both sums to every rank.",
        ),
    ),
    Example(
        "two_broadcasts",
        3,
        ("two_broadcasts",),
        (([1, 2, 3, 4, 5], [0] * 5, [0] * 5), ([0] * 3, [10, 20, 30], [0] * 3)),
        (("x before", "y before"), ("x after", "y after")),
        (
            "x is broadcast from rank 0 and y, of another length, from rank 1.",
            "Both start before the wait for either; all ranks start them in the same order.",
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
        ("Element j is scaled by weight j before the ranks are summed.", "premul_sum does both in one call."),
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
            "Rank r enters r seconds late; no rank leaves before the last has entered.",
            "The time above 2 s is the cost of the barrier and of the scheduler.",
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
            "Both ranks send first and receive second; a synchronous send ends when its receive starts.",
            "So neither send ends. Small messages hide the mistake, because MPI buffers them.",
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
            "all_gather: each sum travels once around the ring. Each rank sends 2 (5 - 1) 5/5 = 8 elements.",
        ),
        Operation.ALL_REDUCE,
        "ring",
        accepts_algorithm=False,
    ),
)


def get_example(name: str) -> Example:
    """Return the example called `name`, or raise UnknownNameError, which lists the valid names."""
    for example in EXAMPLES:
        if example.name == name:
            return example
    raise UnknownNameError("example", name, [example.name for example in EXAMPLES])


def find_example(operation: Operation) -> Example | None:
    """Return the first example of `operation` that accepts any algorithm of the operation, or None."""
    return next((each for each in EXAMPLES if each.operation is operation and each.accepts_algorithm), None)
