"""Makes all ranks begin a step together, and makes a step succeed on all ranks or raise the same error on all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from mpi4py import MPI

from hpccoll.errors import HpccollError, WaitTimeoutError
from hpccoll.runtime.progress import Progress

Result = TypeVar("Result")
MEETING_TAG: Final = 8190  # below the tags of pipelines, above those of asynchronous operations
FAILURES = (HpccollError, RuntimeError, OSError, ImportError, AttributeError)


def wait_for_ranks(comm: MPI.Intracomm, progress: Progress) -> None:
    """Block until every rank of `comm` has called this function; operations in flight advance meanwhile. Collective.

    Every rank calls `wait_for_ranks` before a blocking MPI call. A rank's operations in flight do not advance during a
    blocking MPI call, although other ranks may wait for them.
    """
    progress.wait_until(comm.Ibarrier().Test)


def wait_for_members(comm: MPI.Intracomm, members: Sequence[int], progress: Progress, number: int = 0) -> int:
    """Block as `wait_for_ranks` does, but only until the ranks `members` of `comm` have called this function.

    Returns the `number` that the first member has passed, from 0 to 2**32 - 1. Cost: one message of 4 bytes in each
    direction between the first member and every other member.

    Raises:
        WaitTimeoutError: a rank has not called this function before the deadline of `progress`; on the first member,
            the error names the missing ranks.
    """
    leader, *others = members
    peers = others if comm.rank == leader else [leader]
    own, received = number.to_bytes(4, "little"), [bytearray(4) for _ in peers]
    arrivals = [comm.Irecv([buffer, MPI.BYTE], peer, MEETING_TAG) for peer, buffer in zip(peers, received, strict=True)]
    try:
        if comm.rank == leader:
            progress.wait_until(lambda: MPI.Request.Testall(arrivals))
        departures = [comm.Isend([own, MPI.BYTE], peer, MEETING_TAG) for peer in peers]
        progress.wait_until(lambda: MPI.Request.Testall([*arrivals, *departures]))
    except WaitTimeoutError:
        missing = {peer: arrival for peer, arrival in zip(peers, arrivals, strict=True) if not arrival.Test()}
        for arrival in missing.values():
            arrival.Cancel()
        # `missing` is empty if the last rank has arrived after the deadline but before `Test` was called.
        ranks = f"rank {', '.join(map(str, missing))}" if missing else "the last rank"
        named = ranks if comm.rank == leader else f"rank {leader}, or a rank that it waits for,"
        raise WaitTimeoutError(f"{named} has not arrived") from None
    return number if comm.rank == leader else int.from_bytes(received[0], "little")


class ObjectGatherer(Protocol):
    """A communicator that gathers Python objects."""

    def allgather(self, obj: Any, /) -> list[Any]:
        """Return the objects of all ranks, by rank."""


def gather_or_raise(
    comm: ObjectGatherer, step: Callable[[], Result], make_error: Callable[[str], Exception]
) -> list[Result]:
    """Run `step` on every rank and return the results of all ranks, by rank; collective.

    Args:
        step: a function whose result can be pickled.
        make_error: returns the exception for a reason, such as `rank 2: no such device`.

    Raises:
        Exception: `step` raised one of FAILURES on some rank; every rank raises the exception that `make_error`
            returns.

    Cost: one all-gather of the pickled results.
    """
    outcome: tuple[Result | None, str]
    try:
        outcome = step(), ""
    except FAILURES as error:
        outcome = None, str(error).partition("\n")[0] or type(error).__name__
    outcomes = comm.allgather(outcome)
    for rank, (_, reason) in enumerate(outcomes):
        if reason:
            raise make_error(f"rank {rank}: {reason}")
    return [result for result, _ in outcomes]


def run_or_raise(comm: MPI.Intracomm, step: Callable[[], Result], make_error: Callable[[str], Exception]) -> Result:
    """Run `step` as `gather_or_raise` does, but return only this rank's result, of any type; collective."""
    results: list[Result] = []
    gather_or_raise(comm, lambda: results.append(step()), make_error)
    return results[0]
