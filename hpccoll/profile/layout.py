"""The files of a profile: a directory with two files per rank.

- `rank-N.calls` is a mapped file: a header of 8 words (`HEADER`), and a ring of entries (`ENTRY`), 64 bytes each. Entry
  number `serial` (from 0) is at index `serial % capacity`. The header counts the entries that were written, and those
  that were folded into statistics, which may be overwritten. A killed process leaves the file as it is.
- `rank-N.names` has one JSON object a line, each written at once: the program, the call sites, the communicators, the
  clock, and the statistics of folded entries by call site.

Times are nanoseconds of the rank's monotonic clock. hpccoll/native/call_trace.h has the same layout.
"""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import Final

import numpy as np

MAGIC: Final = int.from_bytes(b"hpcprof1", "little")
LAYOUT_VERSION: Final = 1
HEADER: Final = struct.Struct("<8q")  # magic, version, capacity, written, folded, begin of the program, its end, unused
BEGIN_AT, END_AT = 40, 48  # the bytes of the header with the begin and end of the program; the end is 0 while it runs
TIME: Final = struct.Struct("<q")
PERIOD_NS: Final = 10**9  # of which --every N records one in N
CAPACITY: Final = 2**18  # entries of a ring: 16 MiB
CALLS_SUFFIX, NAMES_SUFFIX = ".calls", ".names"

NOT_GIVEN: Final = -9  # a peer or tag that is not among the arguments
ANY, NOBODY = -1, -3  # peers and tags, after the numbers of the MPI library were replaced

ENTRY: Final = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("nbytes", "<i8"),  # of the buffer or object of this rank; -1: unknown
        ("request", "<i8"),  # the request that the call starts or completes; the source of a sendrecv
        ("off_core_ns", "<i8"),  # of the time since the previous call; -1: not measured
        ("number", "<i4"),  # of a collective among those of its communicator
        ("site", "<i4"),
        ("comm", "<i4"),  # -1: none
        ("peer", "<i4"),  # destination, source or root in the communicator, NOT_GIVEN, or such as MPI.ANY_SOURCE
        ("tag", "<i4"),
        ("op", "<i2"),  # an index of `operations` of the file of names
        ("flags", "<i2"),
    ]
)


class EntryFlag(IntFlag):
    """Properties of a recorded call, as bits of the field `flags` of its entry."""

    COLLECTIVE = 1
    START = 2  # the call started a request
    COMPLETE = 4  # the call completed a request
    INIT = 8  # the call made a persistent request
    FAILED = 16  # the call raised an exception
    BLOCKED = 32  # before the call, the thread had given up its core, as for input and output
    IN_PLACE = 64  # the bytes are those of the output buffer
    MORE = 128  # a further request of the call of the previous entry
