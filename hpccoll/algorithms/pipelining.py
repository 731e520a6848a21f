"""Into how many parts a collective of two levels is cut, so that work within nodes hides behind messages between them.

A part is a share of every chunk, so it keeps each chunk's owner and its order of reduction; the parts follow each
other, and while the messages of one cross, the next is reduced and the one before is stored. Shorter messages hide
more of the first and the last part's work, and cost more of what every message costs.
"""

from __future__ import annotations

from typing import Final

from hpccoll.plan import IntArray, Move, Plan

MESSAGE_BYTES: Final = 64 * 2**10  # between nodes; tried at 400 Mbit/s: 32 KiB to 256 KiB, 5 to 16 parts at once
MOST_PARTS: Final = 256


def wanted_parts(plan: Plan, sizes: IntArray, itemsize: int, message_bytes: int = MESSAGE_BYTES) -> int:
    """Return how many parts let messages between nodes be of about `message_bytes`; alike on all ranks.

    Args:
        plan: of two levels.
        sizes: elements of each chunk, shape (C,).
        itemsize: bytes an element.
        message_bytes: what a message should be long.
    """
    return min(max(-(-_longest(plan, sizes) * itemsize // message_bytes), 1), MOST_PARTS)


def _longest(plan: Plan, sizes: IntArray) -> int:
    """Return the elements of the longest message that rank 0, the first of its node, sends or receives."""
    longest = 0
    for steps in plan.column(0):
        for step in steps:
            if isinstance(step, Move) and int(step.dest[0]) != 0:
                for peer, region in ((step.dest, step.send), (step.source, step.recv)):
                    ids = region.ids(1)[0]
                    longest = max(longest, int(sizes[ids[ids >= 0]].sum()) if int(peer[0]) >= 0 else 0)
    return longest
