"""Writes the recorder file of this process: the ring of entries, and the tables to which entries refer.

An entry takes about 0.2 us: one `struct.pack_into` when a call begins, and one store of a word when the call ends.
Entries go to a shared mapping of a file, so that the kernel keeps them if the process is killed. The file's pages are
allocated at once; if that fails, the entries go to private memory instead, because a store to a page that a full file
system cannot allocate would kill the process. The process holds a lock on its file, by which `remove_old_files` finds
unused files.
"""

from __future__ import annotations

import atexit
import fcntl
import mmap
import os
import struct
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final
from zlib import crc32

from hpccoll.native import EntryRing
from hpccoll.private_files import open_private
from hpccoll.recordings import layout
from hpccoll.recordings import process_notes as notes
from hpccoll.recordings.layout import CallKind, encode_ranks

if TYPE_CHECKING:
    from hpccoll.recordings.clock_model import ClockModel
    from hpccoll.recordings.recording import Recording

DIRECTORY: Final = "HPCCOLL_RECORDER"  # if it is set, recorder files are kept in this directory
_MOST_CLOSED: Final = 64  # closed communicators that stay in the tables
# Bytes of a copy of the tables for strings, open communicators and closed communicators.
_NAMES_BYTES, _OPEN_BYTES, _CLOSED_BYTES = 12000, 14000, 6000
_MOST_KEPT: Final = 8  # files of one rank number that stay in the default directory
_MOST_AGE_S: Final = 86400.0  # the age up to which files of ended jobs stay in the default directory
_MEMORY_FILE_SYSTEM: Final = "/dev/shm"  # noqa: S108 - the memory file system, not a place for temporary files


class FlightRecorder:
    """The latest calls of this process, in a file or, if there is no file, in private memory.

    Args:
        directory: the directory of the file; None means private memory.
        rank: the rank of this process in MPI.COMM_WORLD.
        size: the number of ranks of MPI.COMM_WORLD.
        entries: the number of entries in the ring, a power of two.
    """

    def __init__(self, directory: str | None, rank: int, size: int, *, entries: int = layout.ENTRIES) -> None:
        nbytes = layout.HEADER_BYTES + 2 * layout.TABLE_BYTES + entries * layout.ENTRY_BYTES
        self.rank, self.size, self.entries, self._process = rank, size, entries, os.getpid()
        self.path: str | None = None
        self.memory = mmap.mmap(-1, nbytes) if directory is None else self._create_file(directory, nbytes)
        sizes = layout.HEADER_BYTES, layout.TABLE_BYTES, layout.ENTRY_BYTES, entries
        clocks = time.monotonic_ns(), time.time_ns()
        host = os.uname().nodename.encode()[:64]
        # The magic number is written last, so that a reader never sees an incomplete header.
        header = layout.HEADER.pack(layout.MAGIC, layout.VERSION, *sizes, rank, size, self._process, *clocks, host)
        self.memory[8 : len(header)] = header[8:]
        self.memory[:8] = header[:8]
        self.words = memoryview(self.memory).cast("q")
        # `take_entry` returns the next entry's serial number, and its place in bytes and in words; it is thread-safe.
        begin = (layout.HEADER_BYTES + 2 * layout.TABLE_BYTES) // 8
        changing = layout.STARTED_WORD, layout.ENDED_WORD, layout.FAILED_WORD, layout.ROUND_AT // 8
        self.take_entry = EntryRing(self.memory, begin, entries, *changing)
        self._ids = count(int.from_bytes(os.urandom(5)) << 24).__next__
        self._names, self._name_bytes = {"": 0}, 0
        self._open: dict[int, str] = {}  # lines of the tables
        self._closed: dict[int, str] = {}
        self._table_version, self._lock = 0, Lock()
        self._observed: dict[tuple[int, bool], int] = {}  # places of observations, by rank and whether it was dead

    def _create_file(self, directory: str, nbytes: int) -> mmap.mmap:
        """Return the mapping of a new file in `directory`; private memory, with a warning, if there can be no file."""
        directory = os.path.abspath(directory)  # noqa: PTH100 - the program may change its working directory
        path = f"{directory}/{layout.FILE_PREFIX}rank{self.rank}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - `pathlib` takes 5 ms to import
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, nbytes)
                memory = mmap.mmap(descriptor, nbytes)  # keeps a copy of the descriptor, and with it the lock
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.unlink(path)  # noqa: PTH108
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            warnings.warn(
                f"rank {self.rank} cannot keep its flight recorder in {directory} ({error.strerror}), so nothing of it "
                f"will be left if the process is killed; set {DIRECTORY} to a directory with space",
                RuntimeWarning,
                stacklevel=2,
            )
            return mmap.mmap(-1, nbytes)
        self.path = path
        return memory

    def describe(
        self,
        communicator: int,
        operation: str,
        *,
        kind: CallKind = CallKind.COLLECTIVE,
        algorithm: str = "",
        count: int = 0,
        dtype: str = "",
        reduction: str = "",
        root: int = -1,
        tag: int = -1,
        asynchronous: bool = False,
        uneven: bool = False,
    ) -> bytes:
        """Return the bytes that describe a call in its entry; `RecordedCall` describes the arguments.

        `root` is the peer of a send or receive, and -1 where there is none.
        """
        codes = [self._encode(name) for name in (operation, algorithm, dtype, reduction)]
        flags = layout.ASYNCHRONOUS * asynchronous + layout.UNEVEN * uneven
        fixed = layout.DESCRIPTION.pack(communicator, *codes, count, root, tag, kind, flags)
        return fixed + layout.NO_TIMES

    def make_communicator_id(self) -> int:
        """Return an id for a new communicator; no other process returns the same id."""
        return self._ids()

    def add_communicator(
        self, communicator: int, rank: int, size: int, members: tuple[int, ...] | None, name: str = ""
    ) -> None:
        """Add a communicator of `size` ranks to the tables; `rank` is the rank of this process in it.

        `members` lists the communicator's ranks as ranks of MPI.COMM_WORLD; None if some are outside MPI.COMM_WORLD.
        """
        ranks = "" if members is None else encode_ranks(members)
        with self._lock:
            self._open[communicator] = f"{communicator}\t{rank}\t{size}\t{_clean(name)}\t{ranks}"
            self._write_tables()

    def close_communicator(self, communicator: int) -> None:
        """Mark a communicator as closed; the tables keep only the latest closed communicators."""
        with self._lock:
            if communicator in self._open:
                self._closed[communicator] = self._open.pop(communicator)
            if len(self._closed) > _MOST_CLOSED:
                del self._closed[next(iter(self._closed))]
            self._write_tables()

    def set_clock(self, model: ClockModel) -> None:
        """Record how to compute the global time from this rank's clock."""
        packed = layout.CLOCK.pack(*model)
        at, end = layout.CLOCK_AT, layout.CLOCK_AT + layout.CLOCK.size
        layout.CLOCK_CHECK.pack_into(self.memory, end, 0)
        self.memory[at:end] = packed
        layout.CLOCK_CHECK.pack_into(self.memory, end, crc32(packed) or 1)

    def write_ending(self, ending: str) -> None:
        """Record how the program of this rank ends, such as by an uncaught exception."""
        text = ending.encode()[: layout.ENDING_BYTES]
        begin = layout.ENDING_AT + layout.ENDING_LENGTH.size
        self.memory[begin : begin + len(text)] = text
        layout.ENDING_LENGTH.pack_into(self.memory, layout.ENDING_AT, len(text))

    def write_sign_of_life(self, now_ns: int, location: str) -> None:
        """Record that this process is alive, and the line of the program that it executes."""
        text = location.encode()[: notes.LOCATION_BYTES]
        begin = notes.LOCATION_AT + notes.LOCATION_LENGTH.size
        notes.LOCATION_LENGTH.pack_into(self.memory, notes.LOCATION_AT, 0)  # no reader mixes the old and the new line
        self.memory[begin : begin + len(text)] = text
        notes.LOCATION_LENGTH.pack_into(self.memory, notes.LOCATION_AT, len(text))
        struct.pack_into("<q", self.memory, notes.NOTES_AT, now_ns)

    def write_end_of_job(self, now_ns: int) -> None:
        """Record that this rank ends the job now, which will end the processes of the other ranks, too."""
        struct.pack_into("<q", self.memory, notes.NOTES_AT + 8, now_ns)

    def observe(self, now_ns: int, rank: int, state: notes.ObservedState) -> None:
        """Record the state of another rank's process, as this rank sees it.

        For each process, the latest observation that it is dead is kept, and the latest of another state. There is
        space for 32 observations; further ones are ignored.
        """
        with self._lock:  # several threads observe
            place = self._observed.setdefault((rank, state is notes.ObservedState.DEAD), len(self._observed))
        if place < notes.OBSERVATIONS:
            at = notes.OBSERVATIONS_AT + place * notes.OBSERVATION.size
            notes.OBSERVATION.pack_into(self.memory, at, now_ns, rank, state)

    def read(self) -> Recording:
        """Return the recording so far: the communicators and the latest entries."""
        from hpccoll.recordings.recording import parse_recording

        return parse_recording(bytes(self.memory), self.path or "memory")

    def remove(self) -> None:
        """Remove the file, if there is one; later entries are kept in memory. Does nothing in a forked child."""
        if self.path is not None and os.getpid() == self._process:
            with suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108
            self.path = None

    def _encode(self, name: str) -> int:
        """Return the number of a string in the tables, after adding it if it is new and there is space."""
        code = self._names.get(name)
        if code is not None:
            return code
        name = _clean(name)
        with self._lock:
            if name in self._names:
                return self._names[name]
            self._name_bytes += len(f"name\t{len(self._names)}\t{name}\n".encode())
            if self._name_bytes > _NAMES_BYTES:
                return len(self._names)  # a number without a string
            code = self._names.setdefault(name, len(self._names))
            self._write_tables()
        return code

    def _write_tables(self) -> None:
        """Write the next version of the tables over the older of their two copies."""
        lines = [f"name\t{code}\t{name}" for name, code in self._names.items()]
        lines += _fit_lines("open", self._open.values(), _OPEN_BYTES)
        lines += _fit_lines("closed", reversed(self._closed.values()), _CLOSED_BYTES)
        text = "\n".join(lines).encode()
        self._table_version += 1
        at = layout.HEADER_BYTES + self._table_version % 2 * layout.TABLE_BYTES
        begin = at + layout.TABLE.size
        layout.TABLE.pack_into(self.memory, at, 0, 0, 0)  # invalid until it is complete
        self.memory[begin : begin + len(text)] = text
        layout.TABLE.pack_into(self.memory, at, self._table_version, len(text), crc32(text))


def _clean(name: str) -> str:
    """Return a name without tabs and line breaks, and with at most 64 characters, for the tables."""
    return name.replace("\t", " ").replace("\n", " ")[:64]


def _fit_lines(state: str, communicators: Iterable[str], nbytes: int) -> list[str]:
    """Return the communicators' lines, up to `nbytes` bytes in all; lines that do not fit are shortened or left out."""
    lines = []
    for communicator in communicators:
        shorter = communicator.rpartition("\t")[0] + "\t"  # without the members
        fitting = next((line for line in (communicator, shorter) if len(line) + len(state) + 2 <= nbytes), None)
        if fitting is not None:
            lines.append(f"{state}\t{fitting}")
            nbytes -= len(lines[-1]) + 1
    return lines


@cache
def get_recorder() -> FlightRecorder:
    """Return the one recorder of this process, whose file is removed at exit unless HPCCOLL_RECORDER is set.

    MPI must be initialized. The file stays if the process is killed or the job is aborted.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    directory = choose_directory(os.environ)
    recorder = FlightRecorder(directory, world.rank, world.size)
    if not os.environ.get(DIRECTORY):
        atexit.register(recorder.remove)
        remove_old_files(directory, world.rank)
    return recorder


def remove_old_files(directory: str, rank: int) -> None:
    """Remove recorder files that this user's ended jobs left in `directory`, so that it does not fill up.

    Removes files older than a day, and all but the `_MOST_KEPT` newest files of ranks with the number `rank`. Cost: one
    scan of the directory, and a few system calls per removed file.
    """
    found: list[tuple[float, str]] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(layout.FILE_PREFIX):
                with suppress(OSError):  # removed by another rank
                    found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    oldest_s, kept = time.time() - _MOST_AGE_S, 0
    for modified_s, name in sorted(found, reverse=True):  # the newest first
        has_own_number = name.startswith(f"{layout.FILE_PREFIX}rank{rank}-")
        kept += has_own_number
        if modified_s < oldest_s or (has_own_number and kept > _MOST_KEPT):
            _remove_unused(f"{directory}/{name}")


def _remove_unused(path: str) -> None:
    """Remove a recorder file if it belongs to this user and no process holds the lock on it."""
    with suppress(OSError):  # locked, of another user, or removed by another rank
        descriptor = open_private(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)  # noqa: PTH108
        finally:
            os.close(descriptor)


def choose_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of recorder files: HPCCOLL_RECORDER, else HPCCOLL_SHARED_DIR, /dev/shm or tempfile's."""
    given = environ.get(DIRECTORY) or environ.get("HPCCOLL_SHARED_DIR")
    if given or os.path.isdir(_MEMORY_FILE_SYSTEM):  # noqa: PTH112
        return given or _MEMORY_FILE_SYSTEM
    from tempfile import gettempdir

    return gettempdir()
