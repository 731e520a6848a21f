"""All-pairs sampling: few cases in which every two values of two factors that go together meet at least once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

Row = tuple[Any, ...]
TRIES = 24


def pairs(row: Row) -> dict[tuple[int, Any, int, Any], None]:
    """Return the pairs of factor values that a row covers, as a list, so that all processes have the same order."""
    return {(i, row[i], j, row[j]): None for i, j in combinations(range(len(row)), 2)}


def covering(legal: Sequence[Row], free: Sequence[Sequence[Any]], seed: int) -> list[Row]:
    """Return rows that cover all pairs: greedily, each the best of a few drawn at random.

    Args:
        legal: the combinations that go together, of the factors that restrict each other.
        free: the values of every other factor.
        seed: rows are the same for the same seed.
    """
    rng = random.Random(seed)
    width = len(legal[0])
    holding: dict[tuple[int, Any, int, Any], list[Row]] = {}
    single: dict[tuple[int, Any], list[Row]] = {}
    for known in legal:
        for pair in pairs(known):
            holding.setdefault(pair, []).append(known)
        for i, value in enumerate(known):
            single.setdefault((i, value), []).append(known)
    missing = dict.fromkeys(holding)
    for j, values in enumerate(free, width):
        missing |= dict.fromkeys((i, value, j, other) for i, value in single for other in values)
        missing |= dict.fromkeys((k, a, j, b) for k in range(width, j) for a in free[k - width] for b in values)
    rows: list[Row] = []
    while missing:
        i, a, j, b = next(iter(missing))
        best: tuple[int, Row] = (0, ())
        for _ in range(TRIES):
            source = holding[i, a, j, b] if j < width else single[i, a] if i < width else legal
            row: list[Any] = [*rng.choice(source), *(rng.choice(values) for values in free)]
            row[i], row[j] = a, b
            best = max(best, (len(pairs(tuple(row)).keys() & missing.keys()), tuple(row)), key=lambda found: found[0])
        rows.append(best[1])
        for pair in pairs(best[1]):
            missing.pop(pair, None)
    return rows
