"""The barrier of a node's ranks: each rank counts its barriers (fences) in a shared line and polls the other lines.

The native extension has the barrier (native/barrier_types.c) and its waits (native/waits.h). At the first fence of a
collective a rank also publishes a fingerprint of the collective, so ranks that called different collectives detect the
difference before they access data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpccoll.native import NodeBarrier
from hpccoll.runtime.progress import Progress

if TYPE_CHECKING:
    from hpccoll.runtime.node_memory.segment import Words

DIRECT: Final = 1 << 62  # set in an entry where other ranks can access this rank's buffers in place
FINGERPRINT: Final = DIRECT - 1
WORDS: Final = 8  # the count of fences, two entries in turn (a fingerprint and two locations each), sleeping ranks
# A rank is at most one entry ahead of the ranks that still read its words, so words for two entries suffice. If
# the data of a collective fits into the two words for locations, an entry has this payload in their place.
ENTRY_PAYLOAD_BYTES: Final = 16
ENTRY_PAYLOAD_AT: Final = (16, 40)  # byte offsets in a line, for entries number 0 and 1


def make_barrier(lines: Words, row: int, oversubscribed: bool, progress: Progress) -> NodeBarrier:
    """Return a barrier of the node's ranks, whose long waits advance the operations in flight.

    Args:
        lines: the shared words of the node's ranks, shape (ranks, WORDS or more), initially zero.
        row: the row of this rank in `lines`.
        oversubscribed: whether there are more ranks than cores; if so, a wait yields the core sooner.
    """
    return NodeBarrier(lines, row, oversubscribed, progress.attend, progress.operations, progress.transfers)
