"""Finds ranks that wait for each other in vain because they made different collective calls.

A rank that has waited for FIRST_NOTICE_S seconds in a collective call tells its neighbours in the tree of departures.py
which call it waits in, and tells them again every second. A rank compares such a notice with its own call of the same
number on the same communicator. The ranks wait in vain for each other if

- the calls differ in operation, algorithm or root, which all ranks must pass alike,
- this rank itself waits in this collective call or a later one, or its program has ended, and
- since this wait or the end of the program began, the neighbour has told twice that it waits in its call.

Counts, dtypes and reductions are not compared, because MPI lets ranks describe the same bytes in different ways. A rank
that is late is in no collective call, so that a rank that waits for a late rank never compares calls with it. Programs
whose calls take less than FIRST_NOTICE_S seconds send no notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpccoll.runtime.recorder.call_recorder import CallRecorder

if TYPE_CHECKING:
    from hpccoll.crash import CallRecord

FIRST_NOTICE_S: Final = 1.0
REPEAT_S: Final = 1.0  # between two notices about one call
_COMPARED: Final = ("algorithm", "root")


@dataclass(frozen=True, slots=True)
class UnfinishedCall:
    """The notice that the sender has been waiting in the collective `call`."""

    call: CallRecord


@dataclass(slots=True)
class _NeighbourCall:
    """The latest unfinished call of a neighbour, and when the last two notices about it arrived (0: not yet)."""

    call: CallRecord
    latest_s: float = 0.0
    previous_s: float = 0.0


class CallComparison:
    """Compares this rank's collective calls on one communicator with the unfinished calls of its neighbours.

    Args:
        state: the recorder of this rank's calls on the communicator.
        neighbours: the ranks of the communicator that are told of unfinished calls of this rank.
        send: sends a notice to a rank of the communicator.
    """

    def __init__(
        self, state: CallRecorder, neighbours: Sequence[int], send: Callable[[int, UnfinishedCall], None]
    ) -> None:
        self._state, self._neighbours, self._send = state, neighbours, send
        self._told_number, self._next_notice_s = 0, FIRST_NOTICE_S
        self._unfinished: dict[int, _NeighbourCall] = {}  # by neighbour

    def announce(self, number: int, waited_s: float) -> None:
        """Tell the neighbours that this rank has waited for `waited_s` seconds in call `number`, if it is time to."""
        if number != self._told_number or waited_s < FIRST_NOTICE_S:
            self._told_number, self._next_notice_s = number, FIRST_NOTICE_S
        if waited_s >= self._next_notice_s and (call := self._find_call(number)) is not None:
            self._next_notice_s = waited_s + REPEAT_S
            for neighbour in self._neighbours:
                self._send(neighbour, UnfinishedCall(call))

    def receive(self, source: int, notice: UnfinishedCall, now: float) -> None:
        """Record the unfinished call of a neighbour, of which a notice has arrived at the time `now`, in seconds."""
        known = self._unfinished.get(source)
        if known is None or known.call.key != notice.call.key:
            known = self._unfinished[source] = _NeighbourCall(notice.call)
        known.previous_s, known.latest_s = known.latest_s, now

    def find_difference(self, last_number: int, since: float) -> tuple[CallRecord, int, CallRecord] | None:
        """Return a call of this rank, a neighbour, and the neighbour's call that differs; None if no call differs.

        Args:
            last_number: calls with larger numbers are not compared.
            since: the time, in seconds, from which on this rank waits; earlier notices do not count, because the
                neighbour may have left its call before.
        """
        for neighbour, unfinished in list(self._unfinished.items()):
            other = unfinished.call
            if unfinished.previous_s > since and other.number <= last_number:
                own = self._find_call(other.number)
                if own is not None and own.communicator == other.communicator and _differ(own, other):
                    return own, neighbour, other
                del self._unfinished[neighbour]
        return None

    def _find_call(self, number: int) -> CallRecord | None:
        """Return this rank's collective call `number` on the communicator; None if the recorder no longer has it."""
        from hpccoll.recordings.job_evidence import make_evidence, name_communicator

        recorder = self._state.recorder
        calls = make_evidence([recorder.read()]).ranks[recorder.rank].collectives
        return calls.get((name_communicator(self._state.communicator), number))


def _differ(own: CallRecord, other: CallRecord) -> bool:
    """Whether two ranks' calls of the same number differ in an argument that all ranks must pass alike."""
    if own.operation != other.operation:
        return True
    values, others = dict(own.details), dict(other.details)
    return any(values[name] != others[name] for name in _COMPARED if name in values and name in others)
