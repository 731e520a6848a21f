"""Makes and closes the communicators of groups of torch.distributed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from hpccoll.communicator import Communicator
from hpccoll.communicator.array_types import OnFailure
from hpccoll.errors import UsageError, WaitTimeoutError
from hpccoll.failures.fault_tolerance import find_dead, is_enabled
from hpccoll.failures.surviving_creation import unlock_after_failure
from hpccoll.failures.survivor_calls import run_shrink
from hpccoll.runtime import job
from hpccoll.runtime.agreement import wait_for_members
from hpccoll.runtime.progress import NEVER, get_progress
from hpccoll.torch.mpi_start import INIT, REMEDIES

if TYPE_CHECKING:
    from mpi4py import MPI

MOST_TAGS: Final = 32768  # MPI guarantees tags up to 32767
CLOSE_LIMIT_S: Final = 10.0


def open_communicator(ranks: Sequence[int], name: str, timeout: timedelta) -> Communicator:
    """Return a communicator of the ranks `ranks`, in the order of this list; collective over these ranks.

    Operations in flight advance while this function waits. In a job that goes on after the death of a rank (`mpirun
    --with-ft ulfm`), operations raise an error that names the dead rank. With TORCH_DISTRIBUTED_DEBUG=DETAIL, the ranks
    compare their arguments before each collective.

    Args:
        ranks: ranks of MPI.COMM_WORLD.
        name: torch's name of the group.
        timeout: the time within which all of `ranks` must call this function.

    Raises:
        DistBackendError: a rank has not called this function within `timeout`.
    """
    own_world = duplicate_world(timeout)
    if is_enabled() and find_dead(own_world):
        return _open_after_death(own_world, ranks, name)
    # Torch's name of a group contains a counter, which differs between ranks if only some made an earlier group.
    tag = _wait_for_ranks(own_world, ranks, timeout, zlib.crc32(name.encode()) % MOST_TAGS)
    group = own_world.group.Incl(ranks)
    try:
        with unlock_after_failure():
            comm = own_world.Create_group(group, tag=tag)
    finally:
        group.Free()
    is_compared = True if dist.get_debug_level() == dist.DebugLevel.DETAIL else None
    on_failure: OnFailure = "raise" if is_enabled() else "end"
    return Communicator(
        comm, adopt=True, mixed_forms=True, compare_arguments=is_compared, name=name, on_failure=on_failure
    )


def _open_after_death(own_world: MPI.Intracomm, ranks: Sequence[int], name: str) -> Communicator:
    """Return a communicator of all living ranks of the MPI job, after a death; collective over the living ranks.

    Raises:
        UsageError: `ranks` are not all living ranks, in the order of MPI.COMM_WORLD; after a death, MPI makes no other
            group.
    """
    comm = run_shrink(own_world)
    living = job.list_world_ranks(comm)
    if living != tuple(ranks):
        raise UsageError(
            f"new group of ranks {', '.join(map(str, ranks))}: after the death of a rank, a new group must have "
            f"all living ranks, which are {', '.join(map(str, living or ()))}"
        )
    return Communicator(comm, adopt=True, mixed_forms=True, name=name, on_failure="raise")


def close_communicator(comm: Communicator, *, usable: bool) -> None:
    """Close a communicator if all its ranks call this function with `usable=True`; collective.

    If some rank does not call the function, the communicator stays open until the process ends, and the function
    returns after CLOSE_LIMIT_S seconds at the latest. A program therefore ends even if only some ranks destroy a group,
    or if some ranks destroy it after a timeout. After the death of a rank, the function waits for no other rank.
    """
    if comm.lost_ranks:
        comm.discard()
        return
    mpi, answer, progress = job.load_mpi(), bytearray([usable]), get_progress()
    meeting = comm.mpi.Iallreduce(mpi.IN_PLACE, [answer, mpi.BYTE], mpi.BAND)
    progress.limit_waits(CLOSE_LIMIT_S)
    try:
        progress.wait_until(meeting.Test)
        if answer[0]:
            comm.close()
    except WaitTimeoutError:
        list_kept().append(answer)
    finally:
        progress.deadline = NEVER


@cache
def list_kept() -> list[object]:
    """Return the list of objects that live until the process ends, such as tensors that MPI may still write to."""
    return []


def meet_all_ranks(timeout: timedelta) -> MPI.Intracomm:
    """Wait until all ranks of the MPI job have called this function; return a duplicate of MPI.COMM_WORLD. Collective.

    Raises:
        DistBackendError: a rank has not called the function within `timeout`.
    """
    own_world = duplicate_world(timeout)
    _wait_for_ranks(own_world, range(own_world.size), timeout)
    return own_world


def _wait_for_ranks(own_world: MPI.Intracomm, ranks: Sequence[int], timeout: timedelta, number: int = 0) -> int:
    """Wait until all of `ranks` have called this function, and return the `number` that the rank `ranks[0]` passed.

    Collective over `ranks`, which are ranks of `own_world`.

    Raises:
        DistBackendError: a rank has not called the function within `timeout`.
    """
    progress = get_progress()
    progress.limit_waits(timeout.total_seconds())
    try:
        return wait_for_members(own_world, ranks, progress, number)
    except WaitTimeoutError as error:
        raise dist.DistBackendError(
            f"new group of ranks {', '.join(map(str, ranks))} on rank {own_world.rank}: {error} within a timeout of "
            f"{timeout.total_seconds():g} s; {REMEDIES[INIT]}"
        ) from error
    finally:
        progress.deadline = NEVER


def duplicate_world(timeout: timedelta, caller: str = INIT) -> MPI.Intracomm:
    """Return a duplicate of MPI.COMM_WORLD for messages of hpccoll.torch, the same at each call.

    The first call of this function is collective over all ranks of the MPI job.

    Args:
        timeout: the time within which all ranks must call this function.
        caller: the function that the user has called, a key of `REMEDIES`, for the error message.

    Raises:
        DistBackendError: a rank has not called this function within `timeout`. After this error, the next call
            continues to wait for the same duplicate of MPI.COMM_WORLD.
    """
    own_world, request = _begin_duplicate()
    progress = get_progress()
    progress.limit_waits(timeout.total_seconds())
    try:
        progress.wait_until(request.Test)
    except WaitTimeoutError as error:
        raise dist.DistBackendError(
            f"{caller} on rank {job.get_world().rank}: a rank has not arrived within a timeout of "
            f"{timeout.total_seconds():g} s; {REMEDIES[caller]}"
        ) from error
    finally:
        progress.deadline = NEVER
    return own_world


@cache
def _begin_duplicate() -> tuple[MPI.Intracomm, MPI.Request]:
    """Start to duplicate MPI.COMM_WORLD; return the duplicate, and the request that completes its creation."""
    return job.get_world().Idup()
