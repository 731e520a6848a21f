"""The number of segments into which a two-level collective is cut, so that work within nodes overlaps with messages.

Segments are pipelined: while the messages of one segment are in flight between nodes, the next segment is reduced and
the previous one is stored. A segment holds a share of every chunk, so each chunk keeps its owner and its order of
reduction. Shorter segments leave less work (of the first and the last segment) without overlap, but add overhead per
byte.
"""

from __future__ import annotations

from typing import Final

from hpccoll.plan import IntArray, Move, Plan

# The most bytes of one segment's message between nodes. Values from 32 to 256 KiB were tried at 400 Mbit/s.
MESSAGE_BYTES: Final = 64 * 2**10
MOST_SEGMENTS: Final = 256


def choose_segment_count(plan: Plan, sizes: IntArray, itemsize: int, message_bytes: int = MESSAGE_BYTES) -> int:
    """Return the number of segments into which to cut a message, from 1 to MOST_SEGMENTS, equal on all ranks.

    Args:
        sizes: the element count of each chunk.
        message_bytes: the most bytes that a message between nodes should have in one segment.
    """
    return min(max(-(-_count_longest_message(plan, sizes) * itemsize // message_bytes), 1), MOST_SEGMENTS)


def _count_longest_message(plan: Plan, sizes: IntArray) -> int:
    """Return the element count of the longest message that rank 0 sends or receives; `sizes` has that of each chunk.

    Every rank looks at the messages of rank 0, so that all ranks return the same number.
    """
    longest = 0
    for steps in plan.column(0):
        for step in steps:
            if isinstance(step, Move) and int(step.dest[0]) != 0:
                for peer, region in ((step.dest, step.send), (step.source, step.recv)):
                    ids = region.ids(1)[0]
                    longest = max(longest, int(sizes[ids[ids >= 0]].sum()) if int(peer[0]) >= 0 else 0)
    return longest
