"""Serial execution of plans in one process, as the reference for result values and for the order of reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.messages import list_messages_by_round
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import IntArray, Op

Array = NDArray[Any]
Combine = Callable[[Array, Array], Array]


def replay(plan: Plan, count: int, inputs: Sequence[Array | None], combine: Combine | None = None) -> list[Array]:
    """Return the output of every rank after `plan` runs on `inputs` in this process, bit-equal to the runtime's result.

    Args:
        count: elements of the vector, or of one block.
        inputs: one 1-D array of input chunks per rank, or None for a rank without input.
        combine: returns left (+) right of two 1-D arrays; required where the operation reduces.

    Returns:
        One 1-D array of output chunks per rank (empty where the rank has no output).
    """
    n, chunks, operation = plan.ranks, plan.rounds().chunks, plan.operation
    ranks = np.arange(n)
    sizes = operation.chunk_sizes(count, n, chunks)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    dtype = next((array.dtype for array in inputs if array is not None), np.dtype(np.uint8))
    state = np.zeros((n, int(edges[-1])), dtype)
    is_input = np.repeat(operation.input_mask(ranks, n, chunks, plan.root), sizes, axis=1)
    for rank, array in enumerate(inputs):
        if array is not None and is_input[rank].any():
            state[rank, is_input[rank]] = array
    for messages in list_messages_by_round(plan):
        sent = [state[message.source, _element_indices(message.send, edges)] for message in messages]
        for message, incoming in zip(messages, sent, strict=True):
            place = message.dest, _element_indices(message.recv, edges)
            state[place] = _apply_op(message.op, state[place], incoming, combine)
    is_output = np.repeat(operation.output_mask(ranks, n, chunks, plan.root), sizes, axis=1)
    return [state[rank, is_output[rank]] for rank in range(n)]


def _element_indices(chunks: Sequence[int], edges: IntArray) -> IntArray:
    """Return the indices of all elements of `chunks`, in order."""
    ranges = [np.arange(edges[chunk], edges[chunk + 1]) for chunk in chunks]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)


def _apply_op(op: int, own: Array, incoming: Array, combine: Combine | None) -> Array:
    """Return the new values of a chunk: `incoming` for a copy, else the reduction of `own` and `incoming`."""
    if op == Op.COPY or combine is None:
        return incoming
    return combine(own, incoming) if op == Op.OWN_FIRST else combine(incoming, own)
