"""What must hold when a plan or a free program has run: every promise of its operation, read off the ledger.

Each wanted chunk holds each required contribution exactly once; at a barrier every rank has heard of every other, at
least once; all ranks that want a chunk reduced it in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.operation import Mask, Weights
from hpccoll.plan.proof.symbolic_state import SymbolicState, one_hot_weights
from hpccoll.plan.step import IntArray

_RECOUNTED = 2**22  # weights of a recount (32 MiB); beyond it a failure is named without its ranks


def check_postcondition(ledger: SymbolicState, name: str, recount: Callable[[Weights], SymbolicState]) -> None:
    """Raise PlanError unless `ledger` holds what its operation promises.

    Args:
        ledger: the state at the end.
        name: what ran, for the message.
        recount: runs it again with other weights, to say whose contributions are missing or doubled.
    """
    if ledger.heard is not None and not ledger.heard.all():
        early, late = np.nonzero(~ledger.heard)
        raise PlanError(f"{name}: rank {early[0]} may leave before rank {late[0]} arrived")
    rank, chunk = np.nonzero(_wanted(ledger) & ~_right(ledger))
    if len(rank):
        found = _described(ledger, int(rank[0]), int(chunk[0]), recount)
        raise PlanError(f"{name}: in the end rank {rank[0]} chunk {chunk[0]} is wrong: {found}")
    if ledger.operation.reduces:
        _prove_order(ledger, name)


def _wanted(ledger: SymbolicState) -> Mask:
    return ledger.operation.output_mask(np.arange(ledger.n), ledger.n, ledger.chunks, ledger.root)


def _expected(ledger: SymbolicState, weights: Weights) -> Weights:
    return ledger.operation.expected_weights(weights, ledger.n)


def _right(ledger: SymbolicState) -> Mask:
    brought = np.asarray(ledger.brought.any(axis=-1), np.uint64)[..., None]
    counted = ledger.many == _expected(ledger, brought)[..., 0]
    weighed = (ledger.weight == _expected(ledger, ledger.brought)).all(axis=-1)
    return np.asarray(counted & weighed)


def _prove_order(ledger: SymbolicState, name: str) -> None:
    wanted = _wanted(ledger)
    first = np.argmax(wanted, axis=0)
    same = ledger.order == ledger.order[first, np.arange(ledger.chunks)]
    rank, chunk = np.nonzero(wanted & ~same)
    if len(rank):
        pair = f"ranks {first[chunk[0]]} and {rank[0]} reduce chunk {chunk[0]} in different orders"
        raise PlanError(f"{name}: {pair}, so their last bits may differ")


def _described(ledger: SymbolicState, rank: int, chunk: int, recount: Callable[[Weights], SymbolicState]) -> str:
    """Say whose contributions a place lacks or has too often."""
    n = ledger.n
    if not ledger.valid[rank, chunk]:
        return "it was never written"
    if n * n * ledger.chunks > _RECOUNTED:
        return "its contributions are not those required (check fewer ranks to see which)"
    again = recount(one_hot_weights(n, ledger.chunks))
    have = again.weight[rank, chunk, :]
    need = _expected(again, again.brought)[rank, chunk, :]
    less, more = _listed(have < need), _listed(have > need)
    parts = [f"{less} missing"] if less else []
    parts += [f"{more} doubled or misplaced"] if more else []
    return "; ".join(parts) or "it holds another chunk's contributions"


def _listed(ranks: Mask) -> str:
    found: IntArray = np.nonzero(ranks)[0]
    if len(found) < 2:
        return f"the contribution of rank {found[0]} is" if len(found) else ""
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return f"the contributions of ranks {', '.join(map(str, found[:8]))}{more} are"
