"""MPI's `shrink` and `agree` for the survivors of a death, without other MPI calls of this process at the same time.

If another thread calls MPI during an agreement, MPIX_Comm_agree of Open MPI 5.0.11 returns wrong values, or never
returns, also without a death: Open MPI begins the agreement before it sets the request of the agreement, and holds no
lock (`mca_coll_ftagree_iera_intra`). MPIX_Comm_shrink consists of agreements, and crashes if one returns a wrong value.
No other thread of hpccoll therefore calls MPI at the same time as `shrink` or `agree`. Between two tests of an
agreement, the thread of `JobEndings` may call MPI; the progress thread waits until the agreement ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from mpi4py import MPI

from hpccoll.failures.endings import get_endings
from hpccoll.native import hold_progress, release_progress
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.progress import get_progress


def run_shrink(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return an MPI communicator of the living ranks of `comm`, which may be revoked; collective over these ranks."""
    # MPIX_Comm_ishrink of Open MPI 5.0.11 fails after a death, so the shrink blocks.
    # An agreement before the shrink lets this rank wait for the other ranks without blocking in MPI.
    run_agree_without_death(comm, flag=True)
    with _hold_progress_thread(), get_endings().lock:
        return MPI.Intracomm(comm.Shrink())


def run_agree_without_death(comm: MPI.Intracomm, flag: bool) -> bool:
    """Return whether `flag` is true on all ranks of an MPI communicator, and none of them has died."""
    try:
        return _agree_once(comm, flag)
    except MPI.Exception:  # on all living ranks, because none has acknowledged the death
        return False


def run_agree(comm: MPI.Intracomm, flag: bool) -> bool:
    """Return whether `flag` is true on all living ranks of an MPI communicator, which may be revoked."""
    while True:
        try:
            return _agree_once(comm, flag)
        except MPI.Exception:  # on all ranks, because some rank has not acknowledged a death
            comm.Ack_failed()


def _agree_once(comm: MPI.Intracomm, flag: bool) -> bool:
    """Return whether `flag` is true on all living ranks; raise MPI.Exception if a death is not acknowledged."""
    lock, progress, backoff = get_endings().lock, get_progress(), Backoff(spins=False)
    flags, is_done = array("i", [flag]), False
    _list_flags().append(flags)  # MPI writes to them until the request is complete, also after KeyboardInterrupt
    with _hold_progress_thread():
        with lock:
            request = comm.Iagree(flags)
        while not is_done:
            backoff.pause()
            with lock:
                is_done = request.Test()
                progress.advance()  # the operations of other communicators, for which other ranks may wait
        _list_flags().pop()
    return bool(flags[0])


@contextmanager
def _hold_progress_thread() -> Iterator[None]:
    """Keep the progress thread from calling MPI during the `with` block."""
    hold_progress()
    try:
        yield
    finally:
        release_progress()


@cache
def _list_flags() -> list[array[int]]:
    """Return the list of the flags of this process's agreements that are not complete."""
    return []
