"""Complaints of ranks that wait for a rank whose program has ended, and the clock of their waits."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

from hpccoll.failures.departures import PATIENCE_S, Complaint, Departure, DepartureWatch
from hpccoll.failures.endings import TICK_S
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.running_clock import MOST_STEP_S, RunningClock


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_a_complaint_about_a_message_in_flight_is_dropped_for_good(is_in_flight):
    """The rank that complained may have received the message since."""
    in_flight = {0} if is_in_flight else set()
    comm = MPI.COMM_SELF.Dup()
    watch = DepartureWatch(comm, CallRecorder(), in_flight.__contains__, True, print)
    watch.depart()
    complaint = Complaint(0, 0, "recv")
    watch.send(0, complaint)
    while not watch.has_sent:
        watch.poll()
    in_flight.clear()
    assert watch.list_justified_complaints() == ([] if is_in_flight else [complaint])
    comm.Free()


class FakeComm:
    """A communicator whose messages arrive at once; `boxes` has the messages to each rank, with their senders."""

    def __init__(self, boxes, rank):
        self.boxes, self.rank, self.size, self.sent = boxes, rank, len(boxes), []

    def isend(self, notice, dest, _):
        self.boxes[dest].append((self.rank, notice))
        self.sent.append(notice)
        return SimpleNamespace(Test=lambda: True)

    def improbe(self, _, __, status):
        if not self.boxes[self.rank]:
            return None
        source, notice = self.boxes[self.rank].popleft()
        status.Set_source(source)
        return SimpleNamespace(recv=lambda: notice)


class Ranks:
    """Ranks of which each waits in the call after its `calls` calls, or departs after them."""

    def __init__(self, calls):
        boxes: list[deque[Any]] = [deque() for _ in calls]
        self.comms = [FakeComm(boxes, rank) for rank in range(len(calls))]
        self.states = [CallRecorder() for _ in calls]
        self.watches: list[DepartureWatch] = []
        for comm, state, count in zip(self.comms, self.states, calls, strict=True):
            state.count = count
            self.watches.append(DepartureWatch(comm, state, lambda _: False, True, print))  # type: ignore[arg-type]

    def depart(self, *ranks):
        for rank in ranks:
            self.watches[rank].depart()
            self.watches[rank].announce()
            self.poll()

    def poll(self):
        for _ in range(10):
            for watch in self.watches:
                watch.poll()

    def wait(self, *ranks):
        """Let ranks wait in their next call for as long as it takes until they complain."""
        for rank in ranks:
            self.states[rank].count += 1
            self.states[rank].current = "all_reduce"
            self.watches[rank].observe(100.0)
            self.watches[rank].examine(100.0 + PATIENCE_S)
        self.poll()

    def list_sent(self, kind):
        return [each for comm in self.comms for each in comm.sent if isinstance(each, kind)]

    def list_complaints(self, rank):
        return [each.rank for each in self.watches[rank].list_justified_complaints()]


def test_ranks_complain_to_the_departed_rank_with_the_fewest_calls():
    ranks = Ranks([3, 3, 3, 3, 3, 5, 2])
    ranks.depart(5, 6)
    ranks.wait(0, 1, 2, 3, 4)
    assert ranks.list_complaints(6) == [0, 1, 2, 3, 4]
    assert ranks.list_complaints(5) == []


def test_ranks_do_not_complain_to_a_rank_that_has_made_the_call():
    ranks = Ranks([2, 2, 3])
    ranks.depart(2)
    ranks.wait(0, 1)  # in call 3, which rank 2 has made before it departed
    assert not ranks.list_sent(Complaint)
    ranks.watches[0].send(2, Complaint(0, 3, "all_reduce"))
    ranks.watches[1].send(2, Complaint(1, 4, "all_reduce"))
    ranks.poll()
    assert ranks.list_complaints(2) == [1]


def test_ranks_that_depart_after_equally_many_calls_send_few_notices():
    ranks = Ranks([4] * 15)
    ranks.depart(*range(15))
    assert len(ranks.list_sent(Departure)) <= len(ranks.comms) - 1  # each rank is told once
    assert all(watch.have_all_departed for watch in ranks.watches)


class DyingComm(FakeComm):
    """A communicator of which a rank dies before each of the next `deaths` probes, which MPI reports by an error."""

    deaths = 2

    def improbe(self, _, __, status):
        if self.deaths:
            self.deaths -= 1
            raise MPI.Exception(MPI.ERR_OTHER)
        return super().improbe(_, __, status)

    def Ack_failed(self):  # noqa: N802 - the name of mpi4py
        """Acknowledge the deaths until now."""


def test_notices_are_received_after_deaths_in_a_row():
    """The second death may follow between the acknowledgement of the first one and the next probe."""
    notice = Departure(1, 3)
    comm: Any = DyingComm([deque([(1, notice)]), deque()], 0)
    losses: Any = SimpleNamespace()
    watch = DepartureWatch(comm, CallRecorder(), lambda _: False, True, print, losses)
    watch.poll()
    watch.poll()
    assert not comm.boxes[0]
    assert watch._known == {1: notice}


def test_the_clock_of_waits_stands_still_while_the_process_is_stopped():
    clock = RunningClock(100.0)
    assert clock.read(100.0 + TICK_S) == 100.0 + TICK_S
    assert clock.read(200.0) == 100.0 + TICK_S + MOST_STEP_S
    assert clock.read(200.0 + TICK_S) == 100.0 + 2 * TICK_S + MOST_STEP_S
    assert TICK_S < MOST_STEP_S < PATIENCE_S  # a wait that seems long after a stop is examined once more
