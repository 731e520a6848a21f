"""Who meets whom: all pairs in as few rounds as there can be, each node in at most one pair of a round.

The circle method of tournaments: one node keeps its seat, the others move on by one seat a round, and opposite seats
meet. That takes n - 1 rounds for even n, and n for odd n, where in each round one node sits out.
"""

from __future__ import annotations

Pair = tuple[int, int]


def schedule_pairs(nodes: int) -> list[list[Pair]]:
    """Return the rounds of `nodes` nodes, each a list of pairs (lower, higher); together each pair exactly once."""
    seats = nodes + nodes % 2  # with an odd number, whoever is to meet the empty seat sits out
    found = []
    for turn in range(seats - 1):
        order = [0, *(1 + (seat + turn) % (seats - 1) for seat in range(seats - 1))]
        met = [(order[at], order[seats - 1 - at]) for at in range(seats // 2)]
        found.append([(min(pair), max(pair)) for pair in met if max(pair) < nodes])
    return found
