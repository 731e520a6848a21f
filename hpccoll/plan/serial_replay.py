"""The serial executor: one process plays all ranks. The oracle for values and for the order of reduction."""

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
    """Return what every rank holds after `plan` ran on `inputs`, bit for bit what the runtime computes.

    Args:
        plan: what to run.
        count: elements of the vector, or of one block.
        inputs: per rank its held chunks, 1-D; None where it brings nothing. They are not changed.
        combine: left (+) right on equal 1-D arrays; needed where the operation reduces.

    Returns:
        Per rank its wanted chunks, 1-D (empty where it wants none).

    Cost: O(ranks * chunks * count) memory, serial time.
    """
    n, rounds = plan.ranks, plan.moves()
    ranks = np.arange(n)
    sizes = plan.operation.chunk_sizes(count, n, rounds.chunks)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    dtype = next((array.dtype for array in inputs if array is not None), np.dtype(np.uint8))
    state = np.zeros((n, int(edges[-1])), dtype)
    held = np.repeat(plan.operation.input_mask(ranks, n, rounds.chunks, plan.root), sizes, axis=1)
    for rank, array in enumerate(inputs):
        if array is not None and held[rank].any():
            state[rank, held[rank]] = array
    for moves in rounds:
        arrivals = []
        for move in moves:
            out, into = move.send.ids(n), move.recv.ids(n)
            ops = np.broadcast_to(np.asarray(move.op), (n,))
            for rank in np.nonzero(move.source != NO_PEER)[0].tolist():
                source = int(move.source[rank])
                arrivals.append(
                    (int(ops[rank]), rank, _elements(into[rank], edges), state[source, _elements(out[source], edges)])
                )
        for op, rank, where, value in arrivals:
            state[rank, where] = _joined(op, state[rank, where], value, combine)
    wanted = np.repeat(plan.operation.output_mask(ranks, n, rounds.chunks, plan.root), sizes, axis=1)
    return [state[rank, wanted[rank]] for rank in range(n)]


def _elements(ids: IntArray, edges: IntArray) -> IntArray:
    pieces = [np.arange(edges[chunk], edges[chunk + 1]) for chunk in ids if chunk >= 0]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _joined(op: int, own: Array, incoming: Array, combine: Combine | None) -> Array:
    if op == Op.COPY or combine is None:
        return incoming
    return combine(own, incoming) if op == Op.OWN_FIRST else combine(incoming, own)
