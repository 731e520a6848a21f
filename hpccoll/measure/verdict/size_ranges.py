"""Groups successive message sizes at which the same implementations are the fastest or tie with the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def group_sizes_by_fastest(fastest: Sequence[Sequence[Name]]) -> list[tuple[tuple[Name, ...], list[int]]]:
    """Group successive message sizes, so that in each group one name is always the fastest or tied with it.

    Args:
        fastest: per message size, the name of the fastest and then the names that tie with it; empty where all results
            were wrong, which puts the size into no group.

    Returns:
        Per group, the names that all its sizes share, the most frequent winner first, and the indices of the sizes.
    """
    groups: list[tuple[list[Name], list[int]]] = []
    for position, names in enumerate(fastest):
        kept = [name for name in groups[-1][0] if name in names] if groups else []
        if kept:
            groups[-1] = (kept, [*groups[-1][1], position])
        elif names:
            groups.append((list(names), [position]))
    found = []
    for names, positions in groups:
        wins = Counter(fastest[position][0] for position in positions)
        found.append((tuple(sorted(names, key=wins.__getitem__, reverse=True)), positions))
    return found
