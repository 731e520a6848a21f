"""Segments of shared memory: one per rank, mapped by all ranks of its node.

A segment is a Linux memfd, which the other ranks open as /proc/PID/fd/N of its owner. A memfd has no name in any file
system, so nothing is left behind when a process is killed, and its size is not limited by /dev/shm. Where ranks cannot
open each other's memfds (separate PID namespaces, systems other than Linux) or HPCCOLL_SHARED_DIR is set, a segment is
a file, which is unlinked as soon as all ranks have mapped it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.runtime.agreement import gather_or_raise, run_or_raise
from hpccoll.units import format_size

DIRECTORY = "HPCCOLL_SHARED_DIR"  # if it is set, segments are files in this directory


class MappedSegment(mmap.mmap):
    """The mapped memory of a segment; unlike `mmap.mmap`, the class supports weak references."""


def map_segments(
    comm: MPI.Intracomm,
    node_ranks: Sequence[int],
    nbytes: int,
    *,
    reserve: bool,
    environ: Mapping[str, str] = os.environ,
) -> dict[int, MappedSegment]:
    """Create this rank's segment and return the mapped segments of this node's ranks, by rank; collective.

    Args:
        comm: the communicator of all ranks, including the ranks of other nodes.
        node_ranks: the ranks of this node.
        nbytes: size of this rank's segment, which may differ between ranks; at least one page is created.
        reserve: whether to allocate all pages now, so that a lack of memory raises an error instead of crashing later.
        environ: the environment variables, of which HPCCOLL_SHARED_DIR is used.

    Raises:
        UnavailableError: any rank has too little memory or cannot share memory; raised on every rank.

    Cost: two small all-gathers, and if `reserve` is true, the page faults of `nbytes` bytes.
    """
    directory = environ.get(DIRECTORY)
    needed = max(nbytes, mmap.PAGESIZE)
    if not directory:
        with suppress(UnavailableError):
            return _share(comm, node_ranks, needed, lambda: _create_memfd(needed, reserve))
    return _share(comm, node_ranks, needed, lambda: _create_file(_shared_directory(directory), needed))


def _share(
    comm: MPI.Intracomm, node_ranks: Sequence[int], nbytes: int, create: Callable[[], tuple[int, str]]
) -> dict[int, MappedSegment]:
    """Create a segment by `create`, and map the segments of the node's ranks; all ranks raise the same error."""
    created: list[tuple[int, str]] = []

    def offer() -> tuple[int, str, int, int]:
        """Create this rank's segment; return its size and path, and the device and inode numbers of its file."""
        created.append(create())
        descriptor, path = created[0]
        status = os.fstat(descriptor)
        return nbytes, path or f"/proc/{os.getpid()}/fd/{descriptor}", status.st_dev, status.st_ino

    def map_all() -> dict[int, MappedSegment]:
        """Map the segments of the node's ranks."""
        return {rank: _map(*offers[rank], own=created[0][0] if rank == comm.rank else None) for rank in node_ranks}

    try:
        offers = gather_or_raise(comm, offer, _cannot_share)
        return run_or_raise(comm, map_all, _cannot_share)
    finally:
        for descriptor, path in created:
            if path:
                Path(path).unlink(missing_ok=True)
            os.close(descriptor)


def _cannot_share(reason: str) -> UnavailableError:
    """Return the UnavailableError that all ranks raise if a rank fails for `reason`."""
    return UnavailableError(f"memory cannot be shared among the ranks of this host: {reason}")


def _map(nbytes: int, path: str, device: int, inode: int, *, own: int | None) -> MappedSegment:
    """Map another rank's segment by its path, or this rank's segment by its file descriptor `own`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC) if own is None else own
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (device, inode):
            raise UnavailableError(f"{path} belongs to another process: the ranks have separate PID namespaces")
        return MappedSegment(descriptor, nbytes)
    finally:
        if own is None:
            os.close(descriptor)


def _create_memfd(nbytes: int, reserve: bool) -> tuple[int, str]:
    """Return the descriptor of a new memfd and an empty path; if `reserve` is true, allocate all pages."""
    if reserve:
        import psutil

        _require(nbytes, psutil.virtual_memory().available, "memory", "ask for smaller buffers, or for more memory")
    descriptor = os.memfd_create("hpccoll", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
        if reserve:
            os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, ""


def _create_file(directory: Path, nbytes: int) -> tuple[int, str]:
    """Return the descriptor and path of a new file in `directory`, with all pages allocated."""
    from shutil import disk_usage

    remedy = (
        f"enlarge it (mount -o remount,size=... {directory}; docker run --shm-size=...), or name a directory on "
        f"another memory file system in {DIRECTORY}"
    )
    _require(nbytes, disk_usage(directory).free, str(directory), remedy)
    path = directory / f"hpccoll-{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Without allocation, the first access to a page beyond the file system's limit would kill the process.
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise UnavailableError(
            f"{directory} cannot hold {format_size(nbytes)} more ({error.strerror}); {remedy}"
        ) from error
    return descriptor, str(path)


def _require(nbytes: int, free: int, where: str, remedy: str) -> None:
    """Raise UnavailableError if `nbytes` is more than `free`, the free bytes of `where`."""
    if nbytes > free:
        raise UnavailableError(
            f"this rank needs {format_size(nbytes)} of {where}, which has {format_size(free)} left; {remedy}"
        )


def _shared_directory(given: str | None) -> Path:
    """Return the directory for segment files: `given`, or /dev/shm if it exists, or that of temporary files."""
    memory = Path("/dev/shm")  # noqa: S108 - the memory file system, not a place for temporary files
    if given or memory.is_dir():
        return Path(given) if given else memory
    from tempfile import gettempdir

    return Path(gettempdir())


def words(segment: Any, count: int, start: int = 0) -> memoryview:
    """Return `count` 64-bit words of a segment from byte `start` on; loads and stores of one word are atomic."""
    return memoryview(segment)[start : start + 8 * count].cast("Q")
