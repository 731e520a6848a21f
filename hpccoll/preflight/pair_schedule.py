"""Schedule all pairs of nodes in as few rounds as possible, with each node in at most one pair per round.

The schedule uses the circle method for round-robin tournaments: node 0 keeps its seat, the others move on by one seat
per round, and opposite seats form the pairs. An even number n of nodes needs n - 1 rounds. An odd number n of nodes
needs n rounds, each with one idle node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

Pair: TypeAlias = tuple[int, int]
Group = TypeVar("Group", bound=tuple[int, ...])


def schedule_pairs(nodes: int) -> list[list[Pair]]:
    """Return rounds that pair every two of `nodes` nodes exactly once, with each node in at most one pair per round.

    A round is a list of pairs of indices, the lower index first; its pairs can be measured at the same time.
    """
    seats = nodes + nodes % 2  # with an odd number of nodes, the node opposite the empty seat is idle
    rounds = []
    for shift in range(seats - 1):
        order = [0, *(1 + (seat + shift) % (seats - 1) for seat in range(seats - 1))]
        pairs = [(order[seat], order[seats - 1 - seat]) for seat in range(seats // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < nodes])
    return rounds


def split_by_machine(groups: Sequence[Group], boot_ids: Sequence[str]) -> list[list[Group]]:
    """Split pairs of nodes, or single nodes, into lists, in each of which no two elements share a machine.

    The elements of one list can be measured at the same time. If every node is a machine of its own, elements without a
    common node are in one list.

    Args:
        groups: the pairs of nodes, or single nodes, as tuples of the nodes' indices.
        boot_ids: the boot ID of each node's machine, which identifies the machine.
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
