"""Writes the two files of one rank's recording, whose format layout.py describes.

To record a call, C code (hpccoll/native/traced_call.c) reads two clocks and writes 64 bytes. Python functions of this
file describe each call site and each communicator once.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.native import CallTrace
from hpccoll.profile import layout, replay_times
from hpccoll.profile.folding import fold_entries
from hpccoll.profile.traced_methods import list_methods

if TYPE_CHECKING:
    from hpccoll.recordings import ClockModel
    from hpccoll.selection.tuning_table import TuningSite

LIBRARIES: Final = frozenset({"torch", "hpccoll", "mpi4py"})
_FOREVER_NS: Final = 2**62
_MEMORY_FILES: Final = "/dev/shm/hpccoll-profile-"  # noqa: S108 - the memory file system, not a place for temporary files


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """What a recording contains, and where it is written.

    Args:
        directory: the path of the directory for the files of all ranks.
        from_s: seconds from the start of the program to the start of the recording.
        to_s: seconds from the start of the program to the end of the recording; None for the end of the program.
        every: one second out of every `every` seconds is recorded.
        capacity: the number of latest calls that each rank keeps; of older calls, it keeps statistics.
        algorithms: the algorithms that the user has chosen for the drop-in, in the form of HPCCOLL_MPI4PY_ALGORITHMS;
            None if the program runs without the drop-in.
    """

    directory: str
    from_s: float = 0.0
    to_s: float | None = None
    every: int = 1
    capacity: int = layout.CAPACITY
    algorithms: str | None = None


class ProfileRecorder:
    """Writes the two files of this process's recording, the calls and the names to which they refer.

    Args:
        options: what the recording contains, and its directory.
        rank: the rank of this process.
        size: the number of ranks of the job.

    Raises:
        UsageError: the files cannot be written.
    """

    def __init__(self, options: RecordingOptions, rank: int, size: int) -> None:
        self.rank, self.size, self.options = rank, size, options
        begin_ns = time.perf_counter_ns()
        path = Path(options.directory)
        nbytes = layout.HEADER.size + options.capacity * layout.ENTRY.itemsize
        try:
            path.mkdir(parents=True, exist_ok=True)
            _remove_stale(path, rank, size)
            self._path = path / f"rank-{rank}{layout.CALLS_SUFFIX}"
            self._path.unlink(missing_ok=True)
            self._live, self.memory = _map_live_file(rank, self._path, nbytes)
            names = path / f"rank-{rank}{layout.NAMES_SUFFIX}"
            self._names = os.open(names, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError as error:
            reason = f"rank {rank} cannot write {path} ({error.strerror})"
            raise UsageError(f"-o {path}: {reason}; name a directory with 17 MB of space per rank") from error
        header = layout.HEADER.pack(layout.MAGIC, layout.LAYOUT_VERSION, options.capacity, 0, 0, begin_ns, 0, 0)
        self.memory[: len(header)] = header
        self._entries = np.frombuffer(self.memory, layout.ENTRY, offset=layout.HEADER.size)
        self._sites: dict[tuple[str, int, str], int] = {}
        self._comms = 0
        to_ns = _FOREVER_NS if options.to_s is None else begin_ns + round(options.to_s * 1e9)
        from_ns = begin_ns + round(options.from_s * 1e9)
        self.trace = CallTrace(
            self.memory, self.describe_site, self.describe_comm, measure_buffer, self._fold, from_ns, to_ns,
            layout.PERIOD_NS, options.every,
        )  # fmt: skip
        methods = list_methods()
        self._write(
            kind="program", rank=rank, size=size, host=os.uname().nodename, pid=os.getpid(), argv=sys.argv,
            begin_ns=begin_ns, time_ns=time.time_ns(), every=options.every, from_s=options.from_s, to_s=options.to_s,
            calls=str(self._live), algorithms=options.algorithms, names=[method.name for method in methods],
            operations=[method.operation for method in methods],
            pickles=[method.counts_pickled for method in methods],
        )  # fmt: skip

    def describe_site(self, frame: FrameType) -> int:
        """Return the call-site number of the line that a frame executes; -1 if the line is in a library.

        The first call for a line writes the line to the recording. The call site of a call that torch or hpccoll make
        is the line of the program that called torch or hpccoll. In a thread of torch, such as that of the backward pass
        on a GPU, the call site is the line that the main thread executes.
        """
        if _is_of_library(frame):
            if frame.f_back is not None:
                return -1
            frame = _find_main_frame() or frame
        code = frame.f_code
        key = code.co_filename, frame.f_lineno, code.co_qualname
        if key not in self._sites:
            self._sites[key] = len(self._sites)
            self._write(kind="site", id=self._sites[key], file=key[0], line=key[1], function=key[2])
        return self._sites[key]

    def describe_comm(self, comm: Any) -> int:
        """Write the ranks of a communicator to the recording, and return a new number for the communicator.

        `comm` is a communicator of mpi4py or hpccoll, a process group of torch, or None for all ranks.
        """
        members, name = _find_members(comm, self.size)
        ident, self._comms = self._comms, self._comms + 1
        self._write(kind="comm", id=ident, members=members, name=name, library=_find_library(comm))
        return ident

    def set_clock(self, model: ClockModel, error_s: float) -> None:
        """Write the model by which times of this rank's clock become times of rank 0's, and its largest error."""
        self._write(kind="clock", model=list(model), error_s=error_s)

    def set_tuning_site(self, site: TuningSite, *, oversubscribed: bool) -> None:
        """Write the MPI library, host and layout of ranks, by which a tuning table for this job is found.

        `oversubscribed` states whether a node has more ranks than cores.
        """
        fields = {"mpi": site.mpi, "host": site.host, "layout": site.layout}
        self._write(kind="tuning_site", oversubscribed=oversubscribed, **fields)

    def set_constants(self, any_source: int, any_tag: int, no_rank: int) -> None:
        """Write the numbers of the MPI library that stand for any source, any tag and no rank."""
        self._write(kind="constants", any_source=any_source, any_tag=any_tag, no_rank=no_rank)

    def begin(self) -> None:
        """Start recording; the run time of the job begins now."""
        layout.TIME.pack_into(self.memory, layout.BEGIN_AT, time.perf_counter_ns())
        self.trace.is_active = True

    def end(self) -> None:
        """Stop recording, write the time as the end of the program, and move the file of calls to the directory."""
        if not self.trace.is_active:
            return
        self.trace.is_active = False
        layout.TIME.pack_into(self.memory, layout.END_AT, time.perf_counter_ns())
        written = layout.HEADER.unpack_from(self.memory)[3]
        used = layout.HEADER.size + min(written, self.options.capacity) * layout.ENTRY.itemsize
        complete = self._path.with_suffix(".part")
        try:
            complete.write_bytes(self.memory[:used])
            complete.replace(self._path)
        except OSError as error:
            reason = f"the calls of rank {self.rank} cannot be written ({error.strerror}) and stay in {self._live}"
            raise UsageError(f"{self._path}: {reason}; free space, then copy that file to {self._path}") from error
        if self._live != self._path:
            self._live.unlink(missing_ok=True)

    def _fold(self, first: int, count: int) -> None:
        """Write statistics of the `count` entries from number `first` on, which will be overwritten."""
        capacity = self.options.capacity
        entries = self._entries[np.arange(first, first + count) % capacity]
        self._write(kind="folded", sites=fold_entries(entries))

    def _write(self, **fields: Any) -> None:
        """Append a line to the rank's file of names: a JSON object with the fields `fields`."""
        os.write(self._names, json.dumps(fields).encode() + b"\n")


def _is_of_library(frame: FrameType) -> bool:
    """Whether a frame executes code of torch, hpccoll or mpi4py."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES


def _find_main_frame() -> FrameType | None:
    """Return the innermost frame of the main thread that executes code of the program; None if there is none."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - its documented name
    while frame is not None and _is_of_library(frame):
        frame = frame.f_back
    return frame


def measure_buffer(given: Any) -> int:
    """Return the bytes of the buffer argument `given` of a call, such as mpi4py's [array, count, type]; -1: unknown."""
    nbytes = getattr(given, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(given, (list, tuple)) and given:
        first = getattr(given[0], "nbytes", None)
        counts = given[1] if len(given) > 1 else None
        if isinstance(counts, tuple):
            counts = counts[0]
        if isinstance(first, int) and not hasattr(counts, "nbytes"):
            if counts is None:
                return first
            total = counts if isinstance(counts, int) else sum(counts) if isinstance(counts, list) else None
            return first if total is None else min(first, total * _find_itemsize(given))
        if isinstance(first, int) and isinstance(counts, np.ndarray) and len(given) > 2:
            return int(counts.sum()) * _find_itemsize(given)
        sizes = [getattr(item, "nbytes", None) for item in given]
        return sum(size for size in sizes if isinstance(size, int))
    return 8 if isinstance(given, (int, float, np.generic)) else -1


def _find_itemsize(given: Any) -> int:
    """Return the bytes of an element of a buffer that is given as mpi4py's list [array, counts, ..., type]."""
    size = getattr(given[-1], "extent", None)
    return size if isinstance(size, int) else int(getattr(given[0], "itemsize", 1))


def _find_members(comm: Any, size: int) -> tuple[list[int], str]:
    """Return the ranks in the world of a communicator's ranks, and its name.

    The ranks are 0 to `size` - 1 for None, and an empty list if they cannot be found, as for an intercommunicator.
    """
    if comm is None:
        return list(range(size)), "default"
    torch = sys.modules.get("torch.distributed")
    if torch is not None and isinstance(comm, torch.ProcessGroup):
        return [int(rank) for rank in torch.get_process_group_ranks(comm)], str(comm.group_name)
    inner = getattr(comm, "_comm", comm)  # the mpi4py communicator of hpccoll's Communicator
    try:
        from mpi4py import MPI

        if inner == MPI.COMM_NULL or inner.Is_inter():
            return [], str(inner.name)
        group, world = inner.Get_group(), MPI.COMM_WORLD.Get_group()
        members = [int(rank) for rank in MPI.Group.Translate_ranks(group, None, world)]
        group.Free()
        world.Free()
    except (AttributeError, ImportError, RuntimeError):  # MPI.Exception is a RuntimeError
        return [], type(comm).__name__
    return members, str(inner.name)


def _find_library(comm: Any) -> str:
    """Return the library that carries out the collectives of a torch process group, such as `gloo`; else ""."""
    torch = sys.modules.get("torch.distributed")
    is_group = torch is not None and isinstance(comm, torch.ProcessGroup)
    return str(comm.name()) if is_group else ""


def _map_live_file(rank: int, path: Path, nbytes: int) -> tuple[Path, mmap.mmap]:
    """Return the path and the mapping of a new file of `nbytes` bytes for the calls of a running program.

    The file is in the memory file system /dev/shm if there is space, because stores to a mapped file on a disk
    wait while the kernel writes the file. If /dev/shm has no space, the file is `path`.
    """
    memory = Path(f"{_MEMORY_FILES}{rank}-{os.getpid()}-{os.urandom(4).hex()}{layout.CALLS_SUFFIX}")
    try:
        return memory, _map_file(memory, nbytes)
    except OSError:  # /dev/shm is missing, or full as in containers with 64 MiB
        return path, _map_file(path, nbytes)


def _map_file(path: Path, nbytes: int) -> mmap.mmap:
    """Return the mapping of a new file of `nbytes` bytes, all of which are allocated on the file system.

    Without the allocation, a store could end the process by SIGBUS if the file system is full.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def _remove_stale(path: Path, rank: int, size: int) -> None:
    """Remove, on rank 0, files that an earlier job left in the directory `path`; do nothing on other ranks.

    The removed files are those of ranks `size` and above, and the file with the times of earlier replays.
    """
    if rank == 0:
        (path / replay_times.FILE).unlink(missing_ok=True)
        for file in path.glob("rank-*.*"):
            number = file.stem.removeprefix("rank-")
            if number.isdecimal() and int(number) >= size:
                file.unlink(missing_ok=True)
