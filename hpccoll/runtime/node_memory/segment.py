"""A segment of shared memory is one memory file, which every rank of a node maps once.

A segment is a Linux memfd of the node's first rank, which the other ranks open as /proc/PID/fd/N. A memfd has no name
in any file system, so nothing is left behind when a process is killed, and its size is not limited by /dev/shm. Where
ranks cannot open the first rank's memfd (separate PID namespaces, systems other than Linux) or HPCCOLL_SHARED_DIR is
set, a segment is a file, which is unlinked as soon as all ranks have mapped it. Whatever the number of ranks, a segment
costs each rank one mapping and one open file, which Python's `mmap` keeps.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.errors import UnavailableError
from hpccoll.runtime.agreement import gather_or_raise, run_or_raise
from hpccoll.units import format_size

if TYPE_CHECKING:
    from pathlib import Path

Words: TypeAlias = NDArray[np.uint64]
DIRECTORY: Final = "HPCCOLL_SHARED_DIR"  # if it is set, segments are files in this directory


class MappedSegment(mmap.mmap):
    """The mapped memory of a segment; unlike `mmap.mmap`, the class supports weak references."""


def map_segment(
    comm: MPI.Intracomm,
    node_ranks: Sequence[int],
    nbytes: int,
    *,
    reserve: bool,
    environ: Mapping[str, str] = os.environ,
) -> MappedSegment:
    """Return a new segment of shared memory, which the ranks of this rank's node have mapped; collective.

    Args:
        comm: the communicator of all ranks, including the ranks of other nodes.
        node_ranks: the ranks of this node.
        nbytes: size of the segment, the same on all ranks of the node; at least one page is created.
        reserve: whether to allocate all pages now, so that a lack of memory raises an error instead of crashing later.
            Every rank allocates an equal share of the pages, in rank order, so that its share is in memory close to its
            core.
        environ: the environment variables, of which HPCCOLL_SHARED_DIR is used.

    Raises:
        UnavailableError: a node has too little memory or cannot share memory; raised on every rank.

    Cost: two small all-gathers, and if `reserve` is true, the page faults of `nbytes` bytes, shared by the ranks.
    """
    directory = environ.get(DIRECTORY)
    needed = max(nbytes, mmap.PAGESIZE)
    row, ranks = node_ranks.index(comm.rank), len(node_ranks)
    begin, end = needed * row // ranks, needed * (row + 1) // ranks
    own_share = begin, end - begin  # offset and length
    if not directory:
        with suppress(UnavailableError):
            reserved = own_share if reserve else None
            return _share(comm, node_ranks[0], needed, reserved, lambda: _create_memfd(needed, reserve))
    # Without allocation, the first access to a page beyond a file system's limit would kill the process.
    return _share(comm, node_ranks[0], needed, own_share, lambda: _create_file(_shared_directory(directory), needed))


def _share(
    comm: MPI.Intracomm,
    owner: int,
    nbytes: int,
    reserved: tuple[int, int] | None,
    create: Callable[[], tuple[int, str]],
) -> MappedSegment:
    """Map a new segment, which rank `owner` creates by `create`; if creation fails, all ranks raise an error.

    `create` returns a file descriptor, and a path if the file has one. Each rank allocates the pages in its byte range
    `reserved`.
    """
    created: list[tuple[int, str]] = []

    def offer() -> tuple[str, int, int] | None:
        """Create the segment on its owner; return its path, device and inode number, or None on other ranks."""
        if comm.rank != owner:
            return None
        created.append(create())
        descriptor, path = created[0]
        status = os.fstat(descriptor)
        return path or f"/proc/{os.getpid()}/fd/{descriptor}", status.st_dev, status.st_ino

    try:
        offers = gather_or_raise(comm, offer, _cannot_share)
        own = created[0][0] if created else None
        return run_or_raise(comm, lambda: _map(nbytes, reserved, offers[owner], own), _cannot_share)
    finally:
        for descriptor, path in created:
            if path:
                with suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - `pathlib` takes 5 ms to import
            os.close(descriptor)


def _cannot_share(reason: str) -> UnavailableError:
    """Return the UnavailableError that all ranks raise if a rank fails for `reason`."""
    return UnavailableError(f"memory cannot be shared among the ranks of this host: {reason}")


def _map(
    nbytes: int, reserved: tuple[int, int] | None, offer: tuple[str, int, int] | None, own: int | None
) -> MappedSegment:
    """Map a segment by `offer`, or on its owner by the file descriptor `own`; allocate the byte range `reserved`.

    `offer` is the path, device and inode number of the segment's file; `reserved` is a byte offset and a length.
    """
    path, *identity = offer or ("", 0, 0)
    # A memfd is opened by a link in /proc; other links are not followed, because no rank makes them.
    links = 0 if path.startswith("/proc/") else os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | links) if own is None else own
    try:
        status = os.fstat(descriptor)
        if [status.st_dev, status.st_ino] != identity:
            raise UnavailableError(f"{path} belongs to another process: the ranks have separate PID namespaces")
        if reserved is not None and reserved[1]:
            _allocate(descriptor, *reserved, path)
        return MappedSegment(descriptor, nbytes)
    finally:
        if own is None:
            os.close(descriptor)


def _allocate(descriptor: int, begin: int, nbytes: int, path: str) -> None:
    """Allocate the pages of a part of a segment; raise UnavailableError if there is too little memory."""
    try:
        os.posix_fallocate(descriptor, begin, nbytes)
    except OSError as error:
        where = "memory" if path.startswith("/proc/") else path.rpartition("/")[0]
        raise UnavailableError(
            f"{where} cannot hold {format_size(nbytes)} more ({error.strerror}); {_remedy(where)}"
        ) from error


def _create_memfd(nbytes: int, reserve: bool) -> tuple[int, str]:
    """Return the descriptor of a new memfd and an empty path; if `reserve` is true, require that much free memory."""
    if reserve:
        from hpccoll.processes.free_memory import find_free_bytes  # takes 5 ms to import

        _require(nbytes, find_free_bytes(), "memory")
    descriptor = os.memfd_create("hpccoll", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, ""


def _create_file(directory: Path, nbytes: int) -> tuple[int, str]:
    """Return the descriptor and path of a new file in `directory`."""
    from shutil import disk_usage

    _require(nbytes, disk_usage(directory).free, str(directory))
    path = directory / f"hpccoll-{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, nbytes)
    return descriptor, str(path)


def _require(nbytes: int, free: int, where: str) -> None:
    """Raise UnavailableError if `nbytes` is more than `free`, the free bytes of `where`."""
    if nbytes > free:
        raise UnavailableError(
            f"the ranks of this node need {format_size(nbytes)} of {where}, which has {format_size(free)} left; "
            f"{_remedy(where)}"
        )


def _remedy(where: str) -> str:
    """Return the remedy for a lack of space in `where`, which is a directory or the word `memory`."""
    if where == "memory":
        return "ask for smaller buffers, or for more memory"
    return (
        f"enlarge it (mount -o remount,size=... {where}; docker run --shm-size=...), or name a directory on another "
        f"memory file system in {DIRECTORY}"
    )


def _shared_directory(given: str | None) -> Path:
    """Return the directory for segment files: `given`, else /dev/shm if it exists, else the temporary directory."""
    from pathlib import Path

    memory = Path("/dev/shm")  # noqa: S108 - the memory file system, not a place for temporary files
    if given or memory.is_dir():
        return Path(given) if given else memory
    from tempfile import gettempdir

    return Path(gettempdir())


def words(segment: MappedSegment, rows: int, columns: int, begin: int = 0) -> Words:
    """Return 64-bit words of a segment from byte `begin` on, shape (rows, columns); each load and store is atomic."""
    return np.frombuffer(segment, np.uint64, rows * columns, begin).reshape(rows, columns)
