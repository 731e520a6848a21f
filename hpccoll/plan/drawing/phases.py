"""The phases of an all-reduce, read off what it does: which rounds reduce, and where sums are first complete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpccoll.plan.operation import Mask, Operation


def phases(operation: Operation, kinds: Sequence[tuple[bool, bool]], done: Sequence[Mask]) -> list[str]:
    """Return a name for every frame; empty for the start, and where there is but one phase.

    Args:
        operation: only an all-reduce has phases with names of their own.
        kinds: for each frame whether messages reduce, and whether messages copy.
        done: for each frame which chunks are complete, shape (n, C).
    """
    reducing, copying = (any(kind[at] for kind in kinds) for at in (0, 1))
    if operation is not Operation.ALL_REDUCE or not (reducing and copying):
        return [""] * len(kinds)
    first, second = _names(kinds, done)
    both = f"{first} and {second}"
    named = {(False, False): "", (True, False): first, (False, True): second, (True, True): both}
    return [named[kind] for kind in kinds]


def _names(kinds: Sequence[tuple[bool, bool]], done: Sequence[Mask]) -> tuple[str, str]:
    n, chunks = done[0].shape
    firsts = [next(mask[:, c] for mask in done if mask[:, c].any()) for c in range(chunks)]
    if any(first.sum() != 1 for first in firsts):
        return "reduce", "copy"
    owners = {int(np.argmax(first)) for first in firsts}
    spread = 2 * len(owners) > n and len(owners) > 1 and not any(all(kind) for kind in kinds)
    return ("reduce-scatter", "all-gather") if spread else ("reduce", "broadcast")
