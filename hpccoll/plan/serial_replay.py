"""Serial execution of plans in one process, as the reference for result values and for the order of reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.messages import list_messages_by_round
from hpccoll.plan.operation import Count
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import IntArray, Op

ValueArray = NDArray[Any]
CombineValues = Callable[[ValueArray, ValueArray], ValueArray]


def replay(
    plan: Plan, count: Count, inputs: Sequence[ValueArray | None], combine: CombineValues | None = None
) -> list[ValueArray]:
    """Return the output of every rank after `plan` runs on `inputs` in this process, bit-equal to the runtime's result.

    Args:
        count: elements of the vector or of each of n equal blocks; if blocks differ in size, a tuple with the size of
            each block, which for an all_to_all has the n sizes that rank 0 sends, those that rank 1 sends, and so on.
        inputs: for each rank, a 1-D array with the elements of its input chunks, or None for a rank without input.
        combine: returns left (+) right of two 1-D arrays; required where the operation reduces.

    Returns, for each rank, a 1-D array with the elements of its output chunks (empty where the rank has no output).
    """
    n, chunks, operation = plan.ranks, plan.rounds().chunks, plan.operation
    ranks = np.arange(n)
    sizes = operation.sizes_by_rank(count, n, chunks)
    edges = np.concatenate([np.zeros((n, 1), np.int64), np.cumsum(sizes, axis=1)], axis=1)
    dtype = next((array.dtype for array in inputs if array is not None), np.dtype(np.uint8))
    buffers = [np.zeros(int(edges[rank, -1]), dtype) for rank in range(n)]
    is_input = operation.input_mask(ranks, n, chunks, plan.root)
    for rank, array in enumerate(inputs):
        if array is not None and is_input[rank].any():
            buffers[rank][np.repeat(is_input[rank], sizes[rank])] = array
    for messages in list_messages_by_round(plan):
        sent = [buffers[message.source][_element_indices(message.send, edges[message.source])] for message in messages]
        for message, incoming in zip(messages, sent, strict=True):
            own, place = buffers[message.dest], _element_indices(message.recv, edges[message.dest])
            own[place] = _apply_op(message.op, own[place], incoming, combine)
    is_output = operation.output_mask(ranks, n, chunks, plan.root)
    return [buffers[rank][np.repeat(is_output[rank], sizes[rank])] for rank in range(n)]


def _element_indices(chunks: Sequence[int], edges: IntArray) -> IntArray:
    """Return the indices of all elements of `chunks`, in order; chunk c has elements edges[c] to edges[c + 1] - 1."""
    ranges = [np.arange(edges[chunk], edges[chunk + 1]) for chunk in chunks]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)


def _apply_op(op: int, own: ValueArray, incoming: ValueArray, combine: CombineValues | None) -> ValueArray:
    """Return the new values of a chunk: `incoming` for a copy, else the reduction of `own` and `incoming`.

    `op` states a copy or which operand comes first; `combine` reduces two arrays.
    """
    if op == Op.COPY or combine is None:
        return incoming
    return combine(own, incoming) if op == Op.OWN_FIRST else combine(incoming, own)
