"""The check of the final state of a plan or a free program: every promise of its operation.

Each output chunk holds each required contribution exactly once; in a barrier every rank has heard from every other; all
ranks whose output includes a chunk reduced it in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.operation import Mask, Weights
from hpccoll.plan.proof.symbolic_state import SymbolicState, one_hot_weights
from hpccoll.plan.step import IntArray

_MOST_RECOUNTED = 2**22  # weights of a recount (32 MiB); larger plans fail without naming contributions


def check_postcondition(state: SymbolicState, name: str, run_again: Callable[[Weights], SymbolicState]) -> None:
    """Raise PlanError unless the final `state` is what its operation promises.

    Args:
        state: the state after the last round.
        name: the name of the plan or program, for the message.
        run_again: executes it with other weights, to find which contributions are missing or repeated.
    """
    if state.heard is not None and not state.heard.all():
        early, late = np.nonzero(~state.heard)
        raise PlanError(f"{name}: rank {early[0]} may leave before rank {late[0]} arrived")
    rank, chunk = np.nonzero(_output_mask(state) & ~_find_correct(state))
    if len(rank):
        fault = _describe_fault(state, int(rank[0]), int(chunk[0]), run_again)
        raise PlanError(f"{name}: in the end rank {rank[0]} chunk {chunk[0]} is wrong: {fault}")
    if state.operation.reduces:
        _check_order(state, name)


def _output_mask(state: SymbolicState) -> Mask:
    return state.operation.output_mask(np.arange(state.n), state.n, state.chunks, state.root)


def _find_correct(state: SymbolicState) -> Mask:
    """Return which chunks hold the expected count and weight of contributions, shape (n, C)."""
    has_input = np.asarray(state.input_weights.any(axis=-1), np.uint64)[..., None]
    counts_match = state.counts == state.operation.expected_weights(has_input, state.n)[..., 0]
    weights_match = (state.weights == state.operation.expected_weights(state.input_weights, state.n)).all(axis=-1)
    return np.asarray(counts_match & weights_match)


def _check_order(state: SymbolicState, name: str) -> None:
    """Raise PlanError if two ranks reduced an output chunk in different orders."""
    is_output = _output_mask(state)
    first = np.argmax(is_output, axis=0)
    same = state.order == state.order[first, np.arange(state.chunks)]
    rank, chunk = np.nonzero(is_output & ~same)
    if len(rank):
        pair = f"ranks {first[chunk[0]]} and {rank[0]} reduce chunk {chunk[0]} in different orders"
        raise PlanError(f"{name}: {pair}, so their last bits may differ")


def _describe_fault(state: SymbolicState, rank: int, chunk: int, run_again: Callable[[Weights], SymbolicState]) -> str:
    """Return which contributions a chunk lacks or holds too often."""
    n = state.n
    if not state.valid[rank, chunk]:
        return "it was never written"
    if n * n * state.chunks > _MOST_RECOUNTED:
        return "its contributions are not those required (check fewer ranks to see which)"
    recount = run_again(one_hot_weights(n, state.chunks))
    actual = recount.weights[rank, chunk, :]
    expected = recount.operation.expected_weights(recount.input_weights, n)[rank, chunk, :]
    missing, repeated = _list_contributions(actual < expected), _list_contributions(actual > expected)
    faults = [f"{missing} missing"] if missing else []
    faults += [f"{repeated} doubled or misplaced"] if repeated else []
    return "; ".join(faults) or "it holds another chunk's contributions"


def _list_contributions(ranks: Mask) -> str:
    """Return "the contributions of ranks 0, 2 are" for the ranks in the mask, at most eight by number; "" for none."""
    listed: IntArray = np.nonzero(ranks)[0]
    if len(listed) < 2:
        return f"the contribution of rank {listed[0]} is" if len(listed) else ""
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return f"the contributions of ranks {', '.join(map(str, listed[:8]))}{more} are"
