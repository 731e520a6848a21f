"""Serial execution of plans in one process, as the reference for result values and for the order of reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_PEER, IntArray, Op

Array = NDArray[Any]
Combine = Callable[[Array, Array], Array]


def replay(plan: Plan, count: int, inputs: Sequence[Array | None], combine: Combine | None = None) -> list[Array]:
    """Return the output of every rank after `plan` runs on `inputs` in this process, bit-equal to the runtime's result.

    Args:
        plan: the plan to execute.
        count: elements of the vector, or of one block.
        inputs: one 1-D array of input chunks per rank, or None for a rank without input.
        combine: returns left (+) right of two 1-D arrays; required where the operation reduces.

    Returns:
        One 1-D array of output chunks per rank (empty where the rank has no output).
    """
    n, rounds, operation = plan.ranks, plan.moves(), plan.operation
    ranks = np.arange(n)
    sizes = operation.chunk_sizes(count, n, rounds.chunks)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    dtype = next((array.dtype for array in inputs if array is not None), np.dtype(np.uint8))
    state = np.zeros((n, int(edges[-1])), dtype)
    is_input = np.repeat(operation.input_mask(ranks, n, rounds.chunks, plan.root), sizes, axis=1)
    for rank, array in enumerate(inputs):
        if array is not None and is_input[rank].any():
            state[rank, is_input[rank]] = array
    for moves in rounds:
        arrivals = []
        for move in moves:
            out, into = move.send.ids(n), move.recv.ids(n)
            ops = np.broadcast_to(np.asarray(move.op), (n,))
            for rank in np.nonzero(move.source != NO_PEER)[0].tolist():
                source = int(move.source[rank])
                sent = state[source, _element_indices(out[source], edges)]
                arrivals.append((int(ops[rank]), rank, _element_indices(into[rank], edges), sent))
        for op, rank, indices, incoming in arrivals:
            state[rank, indices] = _apply_op(op, state[rank, indices], incoming, combine)
    is_output = np.repeat(operation.output_mask(ranks, n, rounds.chunks, plan.root), sizes, axis=1)
    return [state[rank, is_output[rank]] for rank in range(n)]


def _element_indices(ids: IntArray, edges: IntArray) -> IntArray:
    """Return the indices of all elements of the chunks `ids`, in order; -1 is skipped."""
    ranges = [np.arange(edges[chunk], edges[chunk + 1]) for chunk in ids if chunk >= 0]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)


def _apply_op(op: int, own: Array, incoming: Array, combine: Combine | None) -> Array:
    """Return the new values of a chunk: `incoming` for a copy, else the reduction of `own` and `incoming`."""
    if op == Op.COPY or combine is None:
        return incoming
    return combine(own, incoming) if op == Op.OWN_FIRST else combine(incoming, own)
