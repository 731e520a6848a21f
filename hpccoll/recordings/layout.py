"""The format of a recorder file: a header, two copies of the tables, and a ring of entries.

All numbers are little-endian. Times are nanoseconds of the rank's monotonic clock (`time.monotonic_ns`).

- The header has HEADER_BYTES bytes and begins with the struct `HEADER`. At byte CLOCK_AT, the header has the struct
  `CLOCK` and the checksum `CLOCK_CHECK`. At byte ROUND_AT, the header has a 64-bit word with two counts of rounds. At
  byte ENDING_AT, the header has the struct `ENDING_LENGTH`, then a string of this length.
- A copy of the tables has TABLE_BYTES bytes, and consists of the struct `TABLE` and lines of text. The lines list the
  communicators and strings to which entries refer by number. A reader uses the valid copy of the tables with the larger
  version number. A writer replaces the older copy of the tables.
- Entry number `serial` (from 1) of the ring is at index `serial % entries`. An entry begins with `ENTRY`, and is
  complete if its first and its last word both are `serial`, because a writer stores the first word first and the last
  word last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import Final

MAGIC: Final = b"hpccrec\n"
VERSION: Final = 2
FILE_PREFIX: Final = "hpccoll-recorder-"
ENTRIES: Final = 2048
MOST_FILE_BYTES: Final = 2**24  # of a file that readers accept; a file of ENTRIES entries has 331,776 bytes
MOST_RANKS: Final = 2**21  # of a job, and of all lists of members in a file together

HEADER_BYTES: Final = 4096
# The header begins with MAGIC, VERSION, HEADER_BYTES, TABLE_BYTES, ENTRY_BYTES and the number of entries of the ring.
# Then the header has the rank and the size of MPI.COMM_WORLD, and the process id.
# The header ends with two times at which the file was made, monotonic and ns since 1970, and the name of the host.
HEADER: Final = struct.Struct("<8s5I3Iqq64s")
CLOCK_AT: Final = 256
CLOCK: Final = struct.Struct("<5d")  # the fields of `ClockModel`; a CRC-32 of these bytes (0: no model) follows
CLOCK_CHECK: Final = struct.Struct("<I")
ROUND_AT: Final = 400  # completed rounds + 2**32 * rounds of the running blocking plan of messages; 0 if none runs
ENDING_AT: Final = 512
ENDING_LENGTH: Final = struct.Struct("<I")
ENDING_BYTES: Final = 1024

TABLE_BYTES: Final = 32768
TABLE: Final = struct.Struct("<QII")  # version, bytes of the text, CRC-32 of the text

ENTRY_BYTES: Final = 128
# The part of an entry that repeated calls share: communicator, four strings, count, root or peer, tag, kind, flags.
# The four strings are operation, algorithm, dtype and reduction, given by their numbers.
DESCRIPTION: Final = struct.Struct("<QHHHHqiiBB6x")
_COUNT_AT: Final = 16
ASYNCHRONOUS, UNEVEN = 1, 2  # flags: an asynchronous call, blocks of different sizes
# The times at which an asynchronous call started, was first waited for and ended (0: not yet), and whether it failed.
# There are unused bytes before and after the byte that says whether the call failed.
TIMES: Final = struct.Struct("<qqq8xB23x")
# An entry consists of its serial number, its begin time, the number of the call on its communicator, the structs
# DESCRIPTION (of the call) and TIMES, and its serial number again.
ENTRY: Final = struct.Struct(f"<QqQ{DESCRIPTION.size + TIMES.size}sQ")
NO_TIMES: Final = TIMES.pack(0, 0, 0, 0)
STARTED_WORD, WAITED_WORD, ENDED_WORD, FAILED_WORD = 8, 9, 10, 12  # 64-bit words of an entry


def replace_count(description: bytes, count: int) -> bytes:
    """Return a copy of an entry's packed DESCRIPTION in which the number of elements is `count`."""
    return description[:_COUNT_AT] + count.to_bytes(8, "little") + description[_COUNT_AT + 8 :]


class CallKind(IntEnum):
    """The kind of call that an entry records; a WAIT call waits for other ranks and moves no data of the user."""

    COLLECTIVE = 0
    SEND = 1
    RECEIVE = 2
    WAIT = 3


def encode_ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks as a string of runs with a constant stride, in order: `0-5:1,9-3:-2`."""
    runs: list[str] = []
    at = 0
    while at < len(ranks):
        stride = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at
        while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == stride:
            end += 1
        runs.append(f"{ranks[at]}-{ranks[end]}:{stride}")
        at = end + 1
    return ",".join(runs)


def decode_ranks(text: str) -> Iterator[int]:
    """Yield the ranks that `encode_ranks` turned into a string."""
    for run in text.split(","):
        bounds, stride = run.split(":")
        first, last = bounds.split("-")
        yield from range(int(first), int(last) + (1 if int(stride) > 0 else -1), int(stride))


def decode_members(text: str, size: int) -> tuple[int, ...]:
    """Return the ranks of a communicator of `size` ranks from the string that `encode_ranks` returned.

    Raises:
        ValueError: the string has another format, or lists another number of ranks or impossible ranks.
    """
    ranks = tuple(islice(decode_ranks(text), size + 1))
    if len(ranks) != size or not 0 <= min(ranks) <= max(ranks) < MOST_RANKS:
        raise ValueError(f"the members {text[:40]!r} are not {size} ranks below {MOST_RANKS}")
    return ranks
