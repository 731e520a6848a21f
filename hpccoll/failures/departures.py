"""Finds ranks that wait, on one communicator, for a rank whose program has ended.

A rank departs when its program ends while the communicator is open. The k-th collective call can never finish if a
departed rank made fewer than k calls (see recorder/call_recorder.py). A message from or to a departed rank can never
finish if that rank has no unfinished message to or from this rank. A rank that waits for a departed rank in vain
complains to the departed rank, which ends the job (endings.py). A rank that waits for ranks that are only late never
complains.

All ranks form a binary tree. Departed ranks tell their neighbours in the tree the least number of calls that a departed
rank made. A rank passes on only a number that is smaller than earlier numbers, so n ranks that end after equally many
calls send at most 3 n notices of departures. The tree also counts departures, so that each rank learns when all ranks
have departed. Notices of this module are messages of up to a few hundred bytes; all notices have a tag that collectives
do not use. A collective call sends notices only if it waits for longer than a second (call_comparison.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.failures.call_comparison import CallComparison, UnfinishedCall
from hpccoll.failures.rank_losses import LossNotice, LossWatch
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.interruption import Interruption, LostRanks
from hpccoll.runtime.recorder.waits import WaitReason
from hpccoll.units import format_list

NOTICE_TAG: Final = 8189  # below the tag of agreement.py, above those of asynchronous operations
PATIENCE_S: Final = 1.0  # shorter waits are never examined
REPEAT_S: Final = 2.0
MOST_LISTED: Final = 8  # ranks in an error message
BLOCKED_S: Final = 0.3  # time that a wait of Python code needs at most to raise the error of `stop_wait`
SUBTREE_DEPARTED: Final = "subtree departed"
ALL_DEPARTED: Final = "all departed"


@dataclass(frozen=True, slots=True)
class Departure:
    """The notice that the program of rank `rank` has ended, after `calls` collective calls."""

    rank: int
    calls: int


@dataclass(frozen=True, slots=True)
class DepartureQuery:
    """A message that asks its receiver to tell the sender when the program of the receiver has ended."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """The message to a rank whose program has ended: rank `rank` still waits for the receiver, in the call `call`.

    `number` is the number of the collective call; 0 if the rank waits for a message.
    """

    rank: int
    number: int
    call: str

    def __str__(self) -> str:
        return f"in call {self.number} ({self.call})" if self.number else f"in {self.call}"


@dataclass(slots=True)
class _Observed:
    """This rank's call or wait at the latest `observe`, and the times of its first `observe` and the last complaint."""

    doing: tuple[int, str | WaitReason | None] = (0, None)
    since: float = 0.0
    complained: float = 0.0
    departed: dict[int, float] = field(default_factory=dict)  # when a departure of an awaited peer was first seen

    @property
    def number(self) -> int:
        """The number of the collective call in which this rank waits; 0 if it waits in none."""
        count, current = self.doing
        if isinstance(current, WaitReason):
            return current.number
        return 0 if current is None else count


class DepartureWatch:
    """Finds departed ranks of a communicator, whose programs have ended; complains to those that this rank waits for.

    Callers hold one lock while they call methods other than the constructor.

    Args:
        comm: the communicator for notices; other messages on it must not have NOTICE_TAG.
        state: the recorder of this rank's calls.
        has_messages_for: returns whether this rank has an unfinished message to or from a given rank of `comm`.
        may_complain: whether this rank may complain and compare calls; if not, it only counts departures.
        receive_other: is called with all other notices: the requests and answers of watchdog.py, and requests to kill a
            rank (survival.py).
        losses: records the deaths of ranks; None if a death ends the job. With `losses`, `comm` is a separate
            communicator, because the communicator of the collectives is revoked after a death.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        state: CallRecorder,
        has_messages_for: Callable[[int], bool],
        may_complain: bool,
        receive_other: Callable[[object], None],
        losses: LossWatch | None = None,
    ) -> None:
        self.comm, self.state, self.may_complain, self._receive_other = comm, state, may_complain, receive_other
        self.losses = losses
        self._tolerate_death = suppress(*(() if losses is None else (MPI.Exception,)))
        rank, size = comm.rank, comm.size
        self._rank, self._has_messages_for = rank, has_messages_for
        self._parent = (rank - 1) // 2 if rank else None
        self._children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]
        self._comparison = CallComparison(state, self._neighbours, self.send)
        self._missing = set(self._children)  # children whose subtrees have not all departed
        self._own: Departure | None = None  # this rank's departure
        self._departed_s = 0.0  # the time of this rank's departure
        self._least: Departure | None = None  # the known departure with the fewest calls
        self._known: dict[int, Departure] = {}
        self._askers: set[int] = set()
        self._asked: set[int] = set()
        self._complaints: dict[int, Complaint] = {}
        self._requests: list[MPI.Request] = []
        self._observed, self._status = _Observed(), MPI.Status()
        self._interrupted_at = 0.0  # when `examine_interruption` first saw that the communicator is unusable
        self.have_all_departed = False

    def poll(self) -> None:
        """Receive all notices that have arrived, without blocking."""
        while (message := self._match_notice()) is not None:
            source = self._status.Get_source()
            with self._tolerate_death:  # of the sender, since then
                self._receive(source, message.recv())
        if self._requests:
            self._requests = [request for request in self._requests if not self._is_sent(request)]

    def _match_notice(self) -> MPI.Message | None:
        """Return a notice that has arrived, to be received; None if there is none.

        A notice may disappear between the probe and the receive, because MPI drops the messages of dead ranks.
        """
        for _ in range(2):
            with self._tolerate_death:
                return self.comm.improbe(MPI.ANY_SOURCE, NOTICE_TAG, self._status)
            self.comm.Ack_failed()  # MPI then no longer reports this death
        return None  # another rank has died since the first acknowledgement; the next call looks again

    def _is_sent(self, request: MPI.Request) -> bool:
        """Whether a notice has been sent, or its receiver has died."""
        with self._tolerate_death:
            return bool(request.Test())
        return True

    @property
    def has_sent(self) -> bool:
        """Whether all notices of this rank have been sent."""
        return not self._requests

    def observe(self, now: float) -> float:
        """Return the seconds that this rank has been in its current call or wait, 0 outside of calls.

        The seconds count from the first `observe` during the call or wait, so `observe` must be called often. `now` is
        a time in seconds.
        """
        doing = self.state.count, self.state.current if self.state.is_in_call else None
        if doing[1] is None or doing != self._observed.doing:
            self._observed = _Observed(doing, now)
        return now - self._observed.since

    def examine(self, now: float) -> None:
        """Tell neighbours of a call that takes long, and complain to a rank whose program has ended if this rank waits.

        Called after `observe`.
        """
        seen = self._observed
        current, number = seen.doing[1], seen.number
        if current is None or not self.may_complain:
            return
        if number:
            self._comparison.announce(number, now - seen.since)
        if now - seen.since >= PATIENCE_S and now - seen.complained >= REPEAT_S:
            if isinstance(current, WaitReason) and current.peers:
                self._examine_peers(current, now)
            elif self._least is not None and self._least.calls < number:
                name = current.name if isinstance(current, WaitReason) else current
                self._complain(self._least.rank, Complaint(self._rank, number, name), now)

    def describe_difference(self, now: float) -> str:
        """Return a sentence on this rank and another that wait for each other in different calls; empty without them.

        The ranks in the sentence are ranks of MPI.COMM_WORLD. `now` is a time in seconds.
        """
        if self._own is not None:
            last_number, since = self.calls, self._departed_s
        else:
            since = self._observed.since
            last_number = self._observed.number if now - since >= PATIENCE_S else 0
        found = self._comparison.find_difference(last_number, since) if self.may_complain else None
        if found is None:
            return ""
        from hpccoll.crash import format_call

        own, other = find_world_rank(self, self._rank), find_world_rank(self, found[1])
        return (
            "ranks made different calls and wait for each other: "
            f"rank {own} made {format_call(found[0])}, and rank {other} waits in {format_call(found[2])}"
        )

    def examine_interruption(self, now: float, stop_wait: Callable[[CallRecorder], None]) -> bool:
        """Tell other ranks that a call of this rank was interrupted; end this rank's wait if another rank's call was.

        `stop_wait` makes a wait of Python code raise the error. Returns whether this rank still waits BLOCKED_S seconds
        after the interruption. Such a wait is in a function of MPI, and only a revocation of the communicators can end
        it.
        """
        interruption = self.state.interruption
        if interruption is None:
            return False
        if isinstance(interruption, LostRanks):  # MPI ends waits on the revoked communicator by itself
            if self.state.is_in_call:
                stop_wait(self.state)
            self._announce_interruption(now, self.state.loop_exit)
            return False
        self._announce_interruption(now, interruption)
        if not self.state.is_in_call:
            self.state.receive_interruption(interruption)  # a call that has ended meanwhile has removed the mark
            return False
        stop_wait(self.state)
        if self.losses is not None:
            self.losses.revoke()
        return now - self._interrupted_at >= BLOCKED_S

    def make_interruption_error(self) -> CommunicationError | None:
        """Return the error that calls raise if the communicator is unusable; None if it is usable."""
        return None if self.state.interruption is None else self.state.interruption.make_error(self._rank)

    def _announce_interruption(self, now: float, interruption: Interruption | None) -> None:
        """Note the time of the first interruption; if a call of this rank was interrupted, tell the other ranks."""
        if interruption is not None and not self._interrupted_at:
            self._interrupted_at = now
            if interruption.rank == self._rank:
                for other in range(self.comm.size):
                    if other != self._rank:
                        self.send(other, interruption)

    def _examine_peers(self, wait: WaitReason, now: float) -> None:
        """Ask the ranks that this rank waits for whether they have departed; complain to one that has."""
        for peer in wait.peers:
            if peer not in self._known:
                if peer not in self._asked:
                    self._asked.add(peer)
                    self.send(peer, DepartureQuery())
            elif now - self._observed.departed.setdefault(peer, now) >= PATIENCE_S:
                self._complain(peer, Complaint(self._rank, 0, wait.name), now)
                return

    def _complain(self, departed: int, complaint: Complaint, now: float) -> None:
        """Send `complaint` to a departed rank, and note the time `now`."""
        self._observed.complained = now
        self.send(departed, complaint)

    def depart(self) -> None:
        """Record that this rank's program has ended; send nothing but the count of departures."""
        self._own, self._departed_s = Departure(self._rank, self.state.count), time.monotonic()
        self._count_departures()

    def announce(self) -> None:
        """Tell the other ranks how many calls this rank had made when it departed; to be called after `depart`."""
        if self._own is not None and not self.state.is_unusable:
            self._spread(self._own, self._rank)
            for asker in self._askers:
                self.send(asker, self._own)
            self._askers.clear()

    @property
    def _neighbours(self) -> list[int]:
        """The parent, if there is one, and the children of this rank in the tree."""
        return self._children if self._parent is None else [self._parent, *self._children]

    @property
    def calls(self) -> int:
        """The number of collective calls that this rank made until its program ended, or until now if it runs."""
        return self._own.calls if self._own is not None else self.state.count

    def list_justified_complaints(self) -> list[Complaint]:
        """Return the complaints of ranks that wait for something that this departed rank will never do."""
        return [
            complaint
            for rank, complaint in sorted(self._complaints.items())
            if complaint.number > self.calls or not (complaint.number or self._has_messages_for(rank))
        ]

    def _receive(self, source: int, notice: Any) -> None:
        """Handle a notice of rank `source`: a departure, query, complaint, unfinished call, death or interruption."""
        match notice:
            case Departure():
                self._spread(notice, source)
            case DepartureQuery() if self._own is not None:
                self.send(source, self._own)
            case DepartureQuery():
                self._askers.add(source)
            case Complaint(rank, number) if number or not self._has_messages_for(rank):
                self._complaints[rank] = notice
            case Complaint():  # the message is in flight, and may arrive before the ranks have ended
                pass
            case UnfinishedCall():
                self._comparison.receive(source, notice, time.monotonic())
            case LossNotice() if self.losses is not None:
                self.losses.receive(notice)
            case Interruption():
                self.state.receive_interruption(notice)
            case str() if notice == SUBTREE_DEPARTED:
                self._missing.discard(source)
                self._count_departures()
            case str() if notice == ALL_DEPARTED:
                self._finish()
            case _:
                self._receive_other(notice)

    def _spread(self, departure: Departure, source: int) -> None:
        """Record a departure; if it has the fewest calls so far, pass it to the tree neighbours except `source`."""
        self._known[departure.rank] = departure
        if self._least is None or departure.calls < self._least.calls:
            self._least = departure
            for neighbour in self._neighbours:
                if neighbour != source:
                    self.send(neighbour, departure)

    def _count_departures(self) -> None:
        """Tell the parent in the tree when this rank and all ranks below it have departed; at the root, tell all ranks.

        Sends nothing on an unusable communicator: no rank waits for the message, and the parent may be in MPI_Finalize,
        where it receives no messages.
        """
        if self._own is None or self._missing or self.state.is_unusable:
            return
        if self._parent is None:
            self._finish()
        else:
            self.send(self._parent, SUBTREE_DEPARTED)

    def _finish(self) -> None:
        """Record, and tell the children, that all ranks have departed."""
        self.have_all_departed = True
        for child in self._children:
            self.send(child, ALL_DEPARTED)

    def send(self, dest: int, notice: object) -> None:
        """Send a notice without blocking; nothing happens if the receiver is known to have died."""
        with self._tolerate_death:
            self._requests.append(self.comm.isend(notice, dest, NOTICE_TAG))


def has_messages_for(state: CallRecorder, rank: int) -> bool:
    """Whether this rank has an unfinished message to or from `rank` on the communicator of `state`."""
    transfers = get_progress().list_transfers(state)
    return any(each.awaited is not None and rank in each.awaited.peers for each in transfers if not each.done)


def find_world_rank(watch: DepartureWatch, rank: int) -> int:
    """Return the rank in MPI.COMM_WORLD of the process that has rank `rank` in the communicator of `watch`."""
    return int(watch.comm.group.Translate_ranks([rank], MPI.COMM_WORLD.group)[0])


def format_complaints(complaints: Sequence[tuple[DepartureWatch, Complaint]]) -> str:
    """Return the waits of up to MOST_LISTED complaining ranks, such as `rank 0 in call 4 (all_reduce)`."""
    waits = [f"rank {find_world_rank(watch, complaint.rank)} {complaint}" for watch, complaint in complaints]
    return format_list(waits, MOST_LISTED)
