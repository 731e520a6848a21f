"""Shared words of a node's barrier: each rank counts its fences in its own line, and polls the other ranks' lines.

The native extension has the barrier (`NodeBarrier` in native/barrier_types.c) and its waits (native/waits.h). At the
first fence of a collective a rank also publishes a fingerprint of the collective, so ranks that called different
collectives detect the difference before they access data.
"""

from __future__ import annotations

from typing import Final

DIRECT: Final = 1 << 62  # set in an entry where other ranks can access this rank's buffers in place
FINGERPRINT: Final = DIRECT - 1
# Words per rank: the count of fences, two entries (each a fingerprint and two locations), and one further word.
# The further word has the number of sleeping ranks and the core of this rank.
WORDS: Final = 8
# A rank is at most one entry ahead of the ranks that still read its words, so words for two entries suffice.
# If the data of a collective fits into the two words for locations, an entry has the data in place of the locations.
ENTRY_PAYLOAD_BYTES: Final = 16
ENTRY_PAYLOAD_AT: Final = (16, 40)  # byte offsets in a line, for entries number 0 and 1
