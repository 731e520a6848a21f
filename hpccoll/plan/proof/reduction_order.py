"""Whether a plan reduces the data of the ranks in the order of their numbers, as non-commutative reductions require.

A chunk that was reduced in rank order holds the data of an interval of ranks, and every reduction joins two adjacent
intervals, the lower one as the first operand.

Cost: O(chunks moved) time, O(ranks * chunks) memory.
"""

from __future__ import annotations

import numpy as np

from hpccoll.plan.moves import to_moves
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_CHUNK, NO_PEER, IntArray, Move, Op

_MIXED = -(2**40)  # first rank of a chunk whose data is not reduced in rank order


def keeps_rank_order(plan: Plan) -> bool:
    """Whether a plan reduces each output chunk in the order of ranks, as non-commutative operators require.

    The plan must be one that `check` accepts. The result is true for a plan without reductions.
    """
    return not plan.operation.reduces or find_unordered_rank(plan) is None


def find_unordered_rank(plan: Plan) -> int | None:
    """Return the lowest rank with an output chunk that is not reduced in rank order; None if there is none."""
    n, rounds = plan.ranks, plan.rounds()
    ranks = np.arange(n)
    first = np.broadcast_to(ranks[:, None], (n, rounds.chunks)).copy()
    last = first.copy()
    for steps in rounds:
        before = first.copy(), last.copy()
        for step in steps:
            for move in to_moves(step, n):
                _apply_move(move, n, (first, last), before)
    is_output = plan.operation.output_mask(ranks, n, rounds.chunks, plan.root)
    unordered = np.nonzero((is_output & (first < 0)).any(axis=1))[0]
    return int(unordered[0]) if len(unordered) else None


def _apply_move(move: Move, n: int, ends: tuple[IntArray, IntArray], before: tuple[IntArray, IntArray]) -> None:
    """Update `ends` by the messages of a move; all messages read `before`, the ends at the start of the round.

    The ends are two arrays of shape (n, chunks): the first and the last rank of the interval of ranks whose
    contributions a chunk has, reduced in rank order; a negative first rank marks another order.
    """
    first, last = ends
    receivers = np.nonzero(move.source != NO_PEER)[0]
    sources = move.source[receivers]
    sent, received = move.send.ids(n)[sources], move.recv.ids(n)[receivers]
    out, into = sent != NO_CHUNK, received != NO_CHUNK
    at = np.repeat(receivers, into.sum(axis=1)), received[into]
    origin = np.repeat(sources, out.sum(axis=1)), sent[out]
    op = np.broadcast_to(np.asarray(move.op), (n,))[at[0]]
    incoming, own = (before[0][origin], before[1][origin]), (first[at], last[at])
    below = np.where(op == Op.OWN_FIRST, own, incoming)
    above = np.where(op == Op.OWN_FIRST, incoming, own)
    is_ordered = (below[1] + 1 == above[0]) & (below[0] >= 0)
    first[at] = np.where(op == Op.COPY, incoming[0], np.where(is_ordered, below[0], _MIXED))
    last[at] = np.where(op == Op.COPY, incoming[1], above[1])
