"""Schedule all pairs of nodes in as few rounds as possible, with each node in at most one pair per round.

Circle method for round-robin tournaments: node 0 keeps its seat, the others move on by one seat per round, and opposite
seats form the pairs. That takes n - 1 rounds for even n, and n for odd n, where one node pauses in each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

Pair: TypeAlias = tuple[int, int]
Group = TypeVar("Group", bound=tuple[int, ...])


def schedule_pairs(nodes: int) -> list[list[Pair]]:
    """Return the rounds for `nodes` nodes. Each is a list of pairs (lower, higher); each pair occurs exactly once."""
    seats = nodes + nodes % 2  # with an odd number of nodes, the partner of the empty seat pauses
    rounds = []
    for shift in range(seats - 1):
        order = [0, *(1 + (seat + shift) % (seats - 1) for seat in range(seats - 1))]
        pairs = [(order[seat], order[seats - 1 - seat]) for seat in range(seats // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < nodes])
    return rounds


def split_by_machine(groups: Sequence[Group], boot_ids: Sequence[str]) -> list[list[Group]]:
    """Split groups of nodes into lists that can be measured at the same time: no machine occurs twice in a list.

    Args:
        groups: groups of nodes, each node in at most one.
        boot_ids: per node, an identifier of its machine. Real nodes are different machines, so that one list holds all
            groups; emulated nodes share one machine.
    """
    turns: list[tuple[set[str], list[Group]]] = []
    for group in groups:
        machines = {boot_ids[node] for node in group}
        for busy, members in turns:
            if not busy & machines:
                busy.update(machines)
                members.append(group)
                break
        else:
            turns.append((machines, [group]))
    return [members for _, members in turns]
