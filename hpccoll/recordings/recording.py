"""`read_recording` reads one recorder file, and `read_recordings` reads the files of a job in a directory.

A file may be read while its process runs, and after the process was killed. An entry that is incomplete when the file
is read is left out.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from zlib import crc32

from hpccoll.errors import RecordingError
from hpccoll.printable import escape_unprintable
from hpccoll.private_files import read_private, read_regular
from hpccoll.recordings import layout
from hpccoll.recordings.clock_model import ClockModel
from hpccoll.recordings.layout import CallKind, decode_members
from hpccoll.recordings.process_notes import ProcessNotes, parse_notes


@dataclass(frozen=True, slots=True)
class RecordedCommunicator:
    """A communicator of a recording; `rank` is the rank of the recording's process in it.

    `members` has the rank in MPI.COMM_WORLD of each rank; None if the recorder file had no space for them. `name` is
    the name that the user gave to the communicator, and may be empty.
    """

    id: int
    rank: int
    size: int
    name: str
    members: tuple[int, ...] | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A collective, send, receive or wait of one rank. Times are nanoseconds of the rank's monotonic clock.

    Attributes:
        serial: the number of the entry among all entries of the rank, from 1.
        communicator: the id of the communicator, the same on all of its ranks.
        number: for a collective, its number among the communicator's collectives, from 1, the same on all ranks; for a
            message, its number among the messages of this rank on the communicator.
        operation: the name of the operation, such as `all_reduce`, `broadcast_object` or `send`, or the reason for a
            wait.
        algorithm: the name of the algorithm; `mpi` for the MPI library's own collective.
        count: elements of the vector or of every block. If blocks differ in size, `count` is the number of elements of
            all blocks together, or 0 for an all_to_all, in which each rank knows only its own blocks.
        uneven: whether blocks differ in size.
        root: the root rank; None if the operation has no root.
        peer: the rank that a message is sent to or received from; None for a receive from any rank.
        begun_ns: time at which the program made the call.
        started_ns: time at which an asynchronous call started to work; None if it has not.
        waited_ns: time at which the program began to wait for an asynchronous call that was not complete; None if it
            has not.
        ended_ns: time at which the call was complete, or failed by an exception; None if neither has happened.
        round, rounds: the numbers of complete and of all rounds, for a blocking call that has not ended and runs a plan
            of messages with several rounds; None for other calls.
    """

    serial: int
    communicator: int
    number: int
    kind: CallKind
    operation: str
    algorithm: str
    count: int
    dtype: str
    reduction: str
    root: int | None
    peer: int | None
    tag: int | None
    asynchronous: bool
    uneven: bool
    begun_ns: int
    started_ns: int | None
    waited_ns: int | None
    ended_ns: int | None
    failed: bool
    round: int | None = None
    rounds: int | None = None

    @property
    def state(self) -> str:
        """The state of the call: `ended`, `failed`, `begun` (blocking), `scheduled` or `started` (asynchronous)."""
        if self.ended_ns is not None:
            return "failed" if self.failed else "ended"
        if not self.asynchronous:
            return "begun"
        return "scheduled" if self.started_ns is None else "started"

    @property
    def is_waited_for(self) -> bool:
        """Whether the rank's program was waiting for this call: the call is incomplete, and blocking or waited for."""
        return self.ended_ns is None and (not self.asynchronous or self.waited_ns is not None)


@dataclass(frozen=True, slots=True)
class Recording:
    """The contents of a recorder file.

    Attributes:
        rank, size: the rank of the process in MPI.COMM_WORLD, and the number of ranks.
        created_ns: the rank's monotonic clock when the file was made.
        created_at: the time of day when the file was made, in seconds since 1970.
        clock: maps the rank's clock to the global clock; None if the clocks were never synchronised.
        ending: how the program of the rank ended, such as `exit`; empty if the process was killed or still runs.
        calls: the latest calls, in the order in which they began.
        lost: the number of older calls whose entries were overwritten.
        notes: signs of life of the process, and the states in which it saw other ranks' processes.
    """

    path: str
    rank: int
    size: int
    host: str
    pid: int
    created_ns: int
    created_at: float
    clock: ClockModel | None
    ending: str
    communicators: Mapping[int, RecordedCommunicator]
    calls: tuple[RecordedCall, ...]
    lost: int
    notes: ProcessNotes

    def to_global(self, clock_ns: int) -> float:
        """Return a monotonic time of the rank in seconds of the global clock; as time of day if `clock` is None."""
        if self.clock is not None:
            return self.clock.apply(clock_ns * 1e-9)
        return self.created_at + (clock_ns - self.created_ns) * 1e-9


def read_recording(path: str | os.PathLike[str], *, own: bool = False) -> Recording:
    """Return the contents of a recorder file; unprintable characters of its strings are escaped.

    Args:
        own: whether to refuse a file that another user may have written.

    Raises:
        RecordingError: the file cannot be read, is truncated or damaged, or is no recorder file of this version.
    """
    path = os.fspath(path)
    try:
        contents = (read_private if own else read_regular)(path, layout.MOST_FILE_BYTES)
    except OSError as error:
        name = escape_unprintable(path)
        raise RecordingError(f"{name} cannot be read: {error.strerror}; pass a file that a rank recorded") from error
    return parse_recording(contents, path)


def parse_recording(contents: bytes, path: str) -> Recording:
    """Return the recording in the contents of the recorder file `path`; raise RecordingError if they are damaged."""
    try:
        return _parse(contents, path)
    except (ValueError, struct.error) as error:
        if isinstance(error, RecordingError):
            raise
        reason = escape_unprintable(str(error))
        raise RecordingError(
            f"{escape_unprintable(path)} is damaged: {reason}; remove it, or copy it again from where it was recorded"
        ) from error


def _parse(contents: bytes, path: str) -> Recording:
    """Return the recording, as `parse_recording` does; raise ValueError for values that no recorder writes."""
    name = escape_unprintable(path)
    if len(contents) < layout.HEADER_BYTES or not contents.startswith(layout.MAGIC):
        found = f"it has {len(contents)} bytes" if contents.startswith(layout.MAGIC) else "it begins differently"
        raise RecordingError(f"{name} is no recorder file of hpccoll: {found}; pass a file that a rank recorded")
    _, version, *sizes, rank, size, pid, created_ns, created_at_ns, host = layout.HEADER.unpack_from(contents)
    expected = [layout.HEADER_BYTES, layout.TABLE_BYTES, layout.ENTRY_BYTES]
    if version != layout.VERSION or sizes[:3] != expected:
        raise RecordingError(
            f"{name} has format version {version} of recorder files, but this version of hpccoll reads version "
            f"{layout.VERSION}; read it with the version of hpccoll that recorded it"
        )
    begin = layout.HEADER_BYTES + 2 * layout.TABLE_BYTES
    needed = begin + sizes[3] * layout.ENTRY_BYTES
    if len(contents) < needed:
        raise RecordingError(f"{name} is truncated: it has {len(contents)} of {needed} bytes; copy the file again")
    if not rank < size <= layout.MOST_RANKS:
        raise ValueError(f"it is of rank {rank} of {size} ranks, and at most {layout.MOST_RANKS} ranks are possible")
    names, communicators = _parse_tables(contents)
    calls = sorted(_parse_calls(contents, begin, sizes[3], names), key=lambda call: call.serial)
    _add_round(calls, contents)
    return Recording(
        path, rank, size, _decode(host.rstrip(b"\0")), pid, created_ns, created_at_ns * 1e-9,
        _parse_clock(contents), _parse_ending(contents), communicators, tuple(calls),
        calls[0].serial - 1 if calls else 0, parse_notes(contents),
    )  # fmt: skip


def _parse_clock(contents: bytes) -> ClockModel | None:
    """Return the clock model of a recorder file; None if there is no complete one."""
    end = layout.CLOCK_AT + layout.CLOCK.size
    (check,) = layout.CLOCK_CHECK.unpack_from(contents, end)
    if not check or check != (crc32(contents[layout.CLOCK_AT : end]) or 1):
        return None
    values = layout.CLOCK.unpack_from(contents, layout.CLOCK_AT)
    return ClockModel(*values) if all(map(isfinite, values)) else None


def _decode(text: bytes) -> str:
    """Return bytes of a recorder file as a string, in which unprintable characters are escaped."""
    return escape_unprintable(text.decode(errors="replace"))


def _parse_ending(contents: bytes) -> str:
    """Return how the rank's program ended, such as `exit`; an empty string if it recorded no end."""
    (length,) = layout.ENDING_LENGTH.unpack_from(contents, layout.ENDING_AT)
    begin = layout.ENDING_AT + layout.ENDING_LENGTH.size
    return _decode(contents[begin : begin + min(length, layout.ENDING_BYTES)])


def _parse_tables(contents: bytes) -> tuple[dict[int, str], dict[int, RecordedCommunicator]]:
    """Return two dicts, of strings and of communicators by number, from the latest complete copy of the tables."""
    latest, text = 0, b""
    for copy in range(2):
        at = layout.HEADER_BYTES + copy * layout.TABLE_BYTES
        version, length, check = layout.TABLE.unpack_from(contents, at)
        begin = at + layout.TABLE.size
        candidate = contents[begin : begin + length]
        if version > latest and length <= layout.TABLE_BYTES and crc32(candidate) == check:
            latest, text = version, candidate
    names: dict[int, str] = {}
    communicators: dict[int, RecordedCommunicator] = {}
    decode = _bind_decoder()
    for line in text.decode(errors="replace").split("\n"):
        match line.split("\t"):
            case ["name", code, name]:
                names[int(code)] = escape_unprintable(name)
            case ["open" | "closed" as state, number, rank, size, name, ranks]:
                communicators[int(number)] = RecordedCommunicator(
                    int(number), int(rank), int(size), escape_unprintable(name),
                    decode(ranks, int(size)) if ranks else None, state == "open",
                )  # fmt: skip
    return names, communicators


def _bind_decoder() -> Callable[[str, int], tuple[int, ...]]:
    """Return a function that takes a string in a file and a number n, and returns the n ranks that the string lists.

    The function decodes equal strings only once. The function raises ValueError once the strings of the file list more
    than MOST_RANKS ranks in all.
    """
    left = layout.MOST_RANKS

    @cache
    def decode(text: str, size: int) -> tuple[int, ...]:
        """Return the ranks that `text` lists, of a communicator of `size` ranks."""
        nonlocal left
        if not 0 < size <= left:
            raise ValueError(f"a communicator has {size} ranks, where 1 to {left} are possible")
        left -= size
        return decode_members(text, size)

    return decode


def _parse_calls(contents: bytes, begin: int, entries: int, names: Mapping[int, str]) -> Iterator[RecordedCall]:
    """Yield the complete entries among the `entries` entries of a file's ring, in the order of the file.

    Args:
        begin: the offset in bytes of the ring of entries.
        names: the strings to which entries refer, by number.
    """
    for index in range(entries):
        at = begin + index * layout.ENTRY_BYTES
        serial, begun_ns, number, details, last = layout.ENTRY.unpack_from(contents, at)
        if serial == last != 0 and serial % entries == index:
            yield _parse_call(serial, begun_ns, number, details, names)


def _add_round(calls: list[RecordedCall], contents: bytes) -> None:
    """Set the numbers of complete and of all rounds of the running blocking collective in `calls`, if known."""
    rounds, completed = divmod(int.from_bytes(contents[layout.ROUND_AT : layout.ROUND_AT + 8], "little"), 2**32)
    for at in reversed(range(len(calls))):
        call = calls[at]
        if rounds and call.kind is CallKind.COLLECTIVE and call.ended_ns is None and not call.asynchronous:
            calls[at] = replace(call, round=completed, rounds=rounds)
            return


def _parse_call(serial: int, begun_ns: int, number: int, details: bytes, names: Mapping[int, str]) -> RecordedCall:
    """Return an entry as a `RecordedCall`; `details` are its DESCRIPTION and TIMES, `names` its strings by number."""
    communicator, *codes, count, root, tag, kind, flags = layout.DESCRIPTION.unpack_from(details)
    started, waited, ended, failed = layout.TIMES.unpack_from(details, layout.DESCRIPTION.size)
    operation, algorithm, dtype, reduction = (names.get(code, "?") for code in codes)
    is_message = kind in (CallKind.SEND, CallKind.RECEIVE)
    rank = root if root >= 0 else None
    return RecordedCall(
        serial, communicator, number, CallKind(kind), operation, algorithm, count, dtype, reduction,
        None if is_message else rank, rank if is_message else None, tag if tag >= 0 else None,
        bool(flags & layout.ASYNCHRONOUS), bool(flags & layout.UNEVEN),
        begun_ns, started or None, waited or None, ended or None, bool(failed),
    )  # fmt: skip
