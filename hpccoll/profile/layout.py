"""Describes the files of a recording: a directory with two files per rank.

- `rank-N.calls` is a mapped file: a header of 8 words (`HEADER`), and a ring buffer of entries (`ENTRY`), 64 bytes for
  each call. Entry number `serial` (from 0) is at index `serial % capacity`. The header has the number of
  written entries, and the number of entries that were folded into statistics and may be overwritten. If the process is
  killed, the file keeps all entries.
- `rank-N.names` has one JSON object per line, written without delay: the program, the call sites, the communicators,
  the clock, and the statistics of folded entries by call site.

Times are nanoseconds of the rank's monotonic clock. hpccoll/native/call_trace.h states the same layout in C.
"""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAGIC: Final = int.from_bytes(b"hpcprof1", "little")
LAYOUT_VERSION: Final = 1
HEADER: Final = struct.Struct("<8q")  # magic, version, capacity, written, folded, begin of the program, its end, unused
BEGIN_AT, END_AT = 40, 48  # byte offsets of the program's begin and end in the header; the end is 0 at first
TIME: Final = struct.Struct("<q")
PERIOD_NS: Final = 10**9  # --every N records one of N periods of this length
CAPACITY: Final = 2**18  # entries of a ring: 16 MiB
CALLS_SUFFIX, NAMES_SUFFIX = ".calls", ".names"

NOT_GIVEN: Final = -9  # stands for a peer or tag that is not among the arguments of a call
ANY, NOBODY = -1, -3  # any source or tag, and no rank; they replace the MPI library's numbers

ENTRY: Final = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("nbytes", "<i8"),  # bytes of this rank's buffer or object; -1: unknown
        ("request", "<i8"),  # the request that the call starts or completes; the source of a sendrecv
        ("off_core_ns", "<i8"),  # time without a core since the previous call; -1: not measured
        ("number", "<i4"),  # counts the collectives of a communicator from 0
        ("site", "<i4"),
        ("comm", "<i4"),  # -1: none
        ("peer", "<i4"),  # destination, source or root, as a rank of the communicator or a constant of MPI
        ("tag", "<i4"),
        ("op", "<i2"),  # index of the method in the lists of the file of names
        ("flags", "<i2"),  # bits of EntryFlag, and ITEMSIZE_BITS
    ]
)


ITEMSIZE_SHIFT: Final = 8
ITEMSIZE_BITS: Final = 7 << ITEMSIZE_SHIFT  # 0: unknown element size; k: elements of 2^(k - 1) bytes, at most 64


def read_itemsizes(flags: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bytes of an element of each call's buffer, from the field `flags` of entries; 0 for unknown ones."""
    codes = (flags & ITEMSIZE_BITS) >> ITEMSIZE_SHIFT
    return np.where(codes > 0, 1 << np.maximum(codes.astype(np.int64) - 1, 0), 0)


class EntryFlag(IntFlag):
    """Properties of a recorded call, as bits of the field `flags` of its entry."""

    COLLECTIVE = 1
    START = 2  # the call started a request
    COMPLETE = 4  # the call completed a request
    INIT = 8  # the call made a persistent request
    FAILED = 16  # the call raised an exception
    BLOCKED = 32  # the thread gave up its core before the call, as for input and output
    IN_PLACE = 64  # the call works in place; nbytes are those of the output buffer
    MORE = 128  # the entry is for a further request of the previous entry's call
