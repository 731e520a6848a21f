"""Lets all ranks of a job fail together, so that the job ends without MPI_Abort.

This module does not import mpi4py, because the import initializes MPI: `job.load_mpi` must first check the launcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from hpccoll.errors import CommunicationError, HpccollError, UnavailableError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")
ENDING_TAG: Final = 8191  # of messages on MPI.COMM_WORLD, on which hpccoll sends no other message
POLL_S: Final = 0.002
_ERRORS = {error.exit_status: error for error in (HpccollError, UsageError, UnavailableError, CommunicationError)}


class ObjectBroadcaster(Protocol):
    """A communicator that broadcasts Python objects."""

    rank: int

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on all ranks."""


def run_on_first_rank(comm: MPI.Intracomm | ObjectBroadcaster, step: Callable[[], Result]) -> Result | None:
    """Run `step` on rank 0 and return its result there, None on the other ranks; collective over `comm`.

    Args:
        comm: an MPI communicator, or a communicator of hpccoll, which may raise RankLostError.
        step: a function without arguments, which only rank 0 calls.

    Raises:
        HpccollError: `step` raised an HpccollError on rank 0; every rank raises an error with the same exit status.
    """
    broadcast: Callable[[Any], Any] = comm.broadcast_object if hasattr(comm, "broadcast_object") else comm.bcast
    result, error = None, None
    if comm.rank == 0:
        try:
            result = step()
        except HpccollError as caught:
            error = caught
    failure: tuple[int, str] | None = broadcast(None if error is None else (error.exit_status, str(error)))
    if error is not None:
        raise error
    if failure is not None:
        raise _ERRORS[failure[0]](failure[1])
    return result


def agree_to_end(world: MPI.Intracomm, announce: Callable[[], None], limit_s: float) -> bool:
    """Return whether all ranks of `world` call this function within `limit_s` seconds; if so, rank 0 calls `announce`.

    Unlike a collective, `agree_to_end` may be called by some of the ranks, while others are in a collective of `world`.
    Rank 0 waits for `limit_s`, the others for twice as long, because they also wait for the decision of rank 0.
    """
    if world.rank:
        arrival = world.Isend(bytearray(1), 0, ENDING_TAG)
        decision = world.Irecv(bytearray(1), 0, ENDING_TAG)
        return _poll([arrival, decision], 2 * limit_s)
    peers = range(1, world.size)
    if not _poll([world.Irecv(bytearray(1), peer, ENDING_TAG) for peer in peers], limit_s):
        return False
    announce()
    return _poll([world.Isend(bytearray(1), peer, ENDING_TAG) for peer in peers], limit_s)


def _poll(requests: Sequence[MPI.Request], limit_s: float) -> bool:
    """Return whether all requests are complete within `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while not all(request.Test() for request in requests):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
