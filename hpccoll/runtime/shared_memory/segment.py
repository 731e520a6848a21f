"""A piece of memory of every rank, mapped by all ranks of its host.

The memory has no name in any file system: it is a memfd, and the others open it through the owner's /proc entry. So
nothing is left behind however a process ends, and the limit is the host's memory rather than /dev/shm. Where that is
refused (containers with process tables of their own, other systems), it is a file that loses its name as soon as all
have mapped it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.units import format_size

DIRECTORY = "HPCCOLL_SHARED_DIR"  # files there instead of nameless memory


class Mapped(mmap.mmap):
    """A mapping that can be referred to weakly, and whose arrays can be told from others by their base."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Where a rank's piece can be opened: its size in bytes, the path, and which file that must turn out to be."""

    nbytes: int
    path: str = ""
    identity: tuple[int, int] = (0, 0)
    error: str = ""


class RefusedError(Exception):
    """This way of sharing memory does not work here."""


def mapped(
    comm: MPI.Intracomm, here: Sequence[int], nbytes: int, *, reserve: bool, environ: Mapping[str, str] = os.environ
) -> dict[int, Mapped]:
    """Return the pieces of all ranks of this host, by rank, this rank's own among them; collective over `comm`.

    Args:
        comm: all ranks, also those of other hosts.
        here: the ranks of this host.
        nbytes: this rank's piece; it may differ by rank, and 0 is a page.
        reserve: take the pages now, so that running out of memory shows here and not when they are first touched.
        environ: where HPCCOLL_SHARED_DIR is looked up.

    Raises:
        UnavailableError: on every rank, where one has too little memory or none can be shared.

    Cost: two small all-gathers; page faults for `nbytes` where reserved.
    """
    directory = environ.get(DIRECTORY)
    needed = max(nbytes, mmap.PAGESIZE)
    ways: list[Callable[[], tuple[int, str]]] = [] if directory else [lambda: _nameless(needed, reserve)]
    ways.append(lambda: _named(_directory(directory), needed))
    failures: list[str] = []
    for way in ways:
        pieces, failures = _tried(comm, here, needed, way)
        if not failures:
            return pieces
    raise UnavailableError(f"memory cannot be shared among the ranks of this host: {failures[0]}")


def _tried(
    comm: MPI.Intracomm, here: Sequence[int], nbytes: int, way: Callable[[], tuple[int, str]]
) -> tuple[dict[int, Mapped], list[str]]:
    """Offer and map in one way; return what was mapped, and what failed on any rank (alike on all ranks)."""
    descriptor, path = -1, ""
    pieces: dict[int, Mapped] = {}
    try:
        try:
            descriptor, path = way()
            status = os.fstat(descriptor)
            shown = path or f"/proc/{os.getpid()}/fd/{descriptor}"
            offer = Offered(nbytes, shown, (status.st_dev, status.st_ino))
        except (OSError, RefusedError, AttributeError) as error:
            offer = Offered(nbytes, error=f"rank {comm.rank}: {error}")
        offers = comm.allgather(offer)
        failures = [each.error for each in offers if each.error]
        if failures:
            return {}, failures
        try:
            pieces = {rank: _map(offers[rank], descriptor if rank == comm.rank else None) for rank in here}
            failure = ""
        except (OSError, RefusedError) as error:
            failure = f"rank {comm.rank}: {error}"
        return pieces, [each for each in comm.allgather(failure) if each]
    finally:
        if path:
            Path(path).unlink(missing_ok=True)
        if descriptor >= 0:
            os.close(descriptor)


def _map(offer: Offered, own: int | None) -> Mapped:
    descriptor = os.open(offer.path, os.O_RDWR | os.O_CLOEXEC) if own is None else own
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != offer.identity:
            raise RefusedError(f"{offer.path} is another process's here: the ranks do not share a process table")
        return Mapped(descriptor, offer.nbytes)
    finally:
        if own is None:
            os.close(descriptor)


def _nameless(nbytes: int, reserve: bool) -> tuple[int, str]:
    if reserve:
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


def _named(directory: Path, nbytes: int) -> tuple[int, str]:
    remedy = (
        f"enlarge it (mount -o remount,size=... {directory}; docker run --shm-size=...), or name a directory on "
        f"another memory file system in {DIRECTORY}"
    )
    _require(nbytes, shutil.disk_usage(directory).free, str(directory), remedy)
    path = directory / f"hpccoll-{os.getpid()}-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Pages are always taken: beyond the file system's limit a first touch would end the process.
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise RefusedError(
            f"{directory} cannot hold {format_size(nbytes)} more ({error.strerror}); {remedy}"
        ) from error
    return descriptor, str(path)


def _require(nbytes: int, free: int, where: str, remedy: str) -> None:
    if nbytes > free:
        raise RefusedError(
            f"this rank needs {format_size(nbytes)} of {where}, which has {format_size(free)} left; {remedy}"
        )


def _directory(given: str | None) -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - the memory file system, not a place for temporary files
    return Path(given) if given else memory if memory.is_dir() else Path(tempfile.gettempdir())


def words(piece: Any, count: int) -> memoryview:
    """Return the first `count` 64-bit words of a piece, which a rank reads and writes one at a time and whole."""
    return memoryview(piece)[: 8 * count].cast("Q")
