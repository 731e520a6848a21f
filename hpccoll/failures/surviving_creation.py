"""Makes communicators while ranks may die.

If a rank dies, MPI's collectives may never end on the other ranks, or may end with wrong data. `JobEndings.guard`
revokes the new MPI communicator after a death. At the end, ranks learn whether all have succeeded: by an agreement in
`make_on_living_ranks`, and by the messages of `GroupVote` for groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol, TypeVar

from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.failures.endings import get_endings
from hpccoll.failures.survivor_calls import run_agree_without_death, run_shrink
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.progress import get_progress

VOTE_TAG: Final = 8187  # differs from NOTICE_TAG of departures.py, because both are used on the same communicator


class Discardable(Protocol):
    """An object, such as a communicator of hpccoll, that can be closed without waiting for other ranks."""

    def discard(self) -> None:
        """Close the object without waiting for other ranks."""


MadeT = TypeVar("MadeT", bound=Discardable)


def make_or_revoke(
    comm: MPI.Intracomm, make: Callable[[MPI.Intracomm], MadeT], parent: MPI.Intracomm | None = None
) -> MadeT:
    """Return `make(comm)`; if `make` fails on a rank or a rank dies, revoke `comm`, so that `make` fails on all ranks.

    Args:
        comm: an MPI communicator that no communicator of hpccoll has yet.
        make: makes a communicator of hpccoll from `comm`; collective.
        parent: the communicator among whose ranks a death ends the call; by default `comm`.
    """
    with get_endings().guard(comm, comm if parent is None else parent), unlock_after_failure():
        try:
            return make(comm)
        except Exception:
            with suppress(Exception):
                comm.Revoke()
            raise


@contextmanager
def unlock_after_failure() -> Iterator[None]:
    """Let MPI make communicators again if the `with` block, or the decorated function, fails to make a communicator.

    Open MPI 5.0.11 has a lock for the numbers of communicators (`ompi_comm_cid_lowest_id`, in `ompi_comm_checkcid`),
    which a failure does not release: communicators with higher numbers would wait for it for ever. A success releases
    the lock.
    """
    try:
        yield
    except Exception:
        MPI.COMM_SELF.Dup().Free()
        raise


def make_on_living_ranks(comm: MPI.Intracomm, make: Callable[[MPI.Intracomm], MadeT]) -> MadeT:
    """Return `make(base)`, where `base` is a new MPI communicator of `comm`'s living ranks; collective over these.

    `make` is called again, with a smaller `base`, if a rank dies during the call.

    Raises:
        Exception: `make` raised this exception, and no rank has died.
        CommunicationError: `make` raised an exception on another rank, and no rank has died.
    """
    base = run_shrink(comm)
    while True:
        made, problem = _try_to_make(base, make)
        has_succeeded = run_agree_without_death(base, made is not None)
        if made is not None and has_succeeded:
            return made
        if made is not None:
            made.discard()
        living = run_shrink(base)
        if living.size == base.size:
            raise problem or CommunicationError(
                f"rank {base.rank}: another rank could not make the communicator; see its error"
            )
        base = living


def _try_to_make(base: MPI.Intracomm, make: Callable[[MPI.Intracomm], MadeT]) -> tuple[MadeT | None, Exception | None]:
    """Return `make(base)` and None; or None and the exception that `make` raised."""
    try:
        return make_or_revoke(base, make), None
    except Exception as error:  # noqa: BLE001 - after a death, Open MPI's collectives may return any data
        return None, error


class GroupVote:
    """Tells the members of a new group, by messages to the first member, whether all have created the group.

    After a death outside of the group, the creation of the group may fail on some members only, which then have no MPI
    communicator of the group. The messages use a communicator that is never revoked.

    Args:
        control: a communicator of the ranks of the group's parent, which is never revoked.
        members: the ranks of the group in `control`.
    """

    def __init__(self, control: MPI.Intracomm, members: Sequence[int]) -> None:
        leader, *others = members
        self._control, self._is_leader = control, control.rank == leader
        self._peers = others if self._is_leader else [leader]
        self._sent: list[tuple[MPI.Request, bytearray]] = []

    def give_up(self) -> None:
        """Vote against the group without waiting for the result; for members that do not call `decide`.

        MPI may read the vote until the parent communicator is closed, so the caller keeps this object until then.
        """
        self._send(False)

    def decide(self, has_made: bool) -> bool:
        """Return whether all members have called `decide` with true; collective over the living members.

        After the death of a member, `decide` may return true on some members only; their group then knows of the death.
        """
        if not self._is_leader:
            self._send(has_made)
        answers = [self._receive(peer) for peer in self._peers]
        result = all(answers) and has_made
        if self._is_leader:
            self._send(result)
            for request, _ in self._sent:
                _complete(request)
        return result

    def _send(self, vote: bool) -> None:
        """Start to send this member's vote to the first member or, from the first member, the result to all others."""
        for peer in self._peers:
            message = bytearray([vote])
            with suppress(MPI.Exception):
                self._sent.append((self._control.Isend([message, MPI.BYTE], peer, VOTE_TAG), message))

    def _receive(self, peer: int) -> bool:
        """Return the vote of a member, or the result; false if the member has died."""
        received = bytearray(1)
        with suppress(MPI.Exception):
            _complete(self._control.Irecv([received, MPI.BYTE], peer, VOTE_TAG))
        return bool(received[0])


def _complete(request: MPI.Request) -> None:
    """Wait for a message; operations in flight, for which its sender may wait, advance. Returns after a death, too."""
    progress, backoff = get_progress(), Backoff(spins=False)
    with suppress(MPI.Exception):
        while not request.Test():
            backoff.pause()
            progress.advance()


@unlock_after_failure()
def create_mpi_group(comm: MPI.Intracomm, members: Sequence[int]) -> MPI.Intracomm:
    """Return a new MPI communicator of the ranks `members` of `comm`; collective over these ranks.

    If a member dies during MPI_Comm_create_group of Open MPI 5.0.11, the other members may wait for ever: its messages
    (`ompi_comm_allreduce_group_nb`) do not notice deaths. A group of all ranks is therefore made by a duplication of
    `comm`.
    """
    if list(members) == list(range(comm.size)):
        return MPI.Intracomm(comm.Dup())
    group = comm.group.Incl(list(members))
    try:
        return MPI.Intracomm(comm.Create_group(group))
    finally:
        group.Free()


@unlock_after_failure()
def split_mpi_comm(comm: MPI.Intracomm, groups: Sequence[Sequence[int]]) -> MPI.Intracomm:
    """Return a new MPI communicator of the group that contains this rank, COMM_NULL if none does; collective.

    Unlike MPI_Comm_create_group, MPI_Comm_split ends after a death, because the thread of endings.py revokes `comm`.
    """
    color, key = MPI.UNDEFINED, 0
    for number, members in enumerate(groups):
        if comm.rank in members:
            color, key = number, list(members).index(comm.rank)
    return MPI.Intracomm(comm.Split(color, key))
