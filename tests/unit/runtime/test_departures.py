"""Complaints of ranks that wait for a rank whose program has ended, and the clock of their waits."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from hpccoll.runtime.departures import PATIENCE_S, Complaint, DepartureWatch
from hpccoll.runtime.endings import MOST_TICK_S, TICK_S, RunningClock
from hpccoll.runtime.recorder.call_recorder import CallRecorder


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


def test_the_clock_of_waits_stands_still_while_the_process_is_stopped():
    clock = RunningClock(100.0)
    assert clock.read(100.0 + TICK_S) == 100.0 + TICK_S
    assert clock.read(200.0) == 100.0 + TICK_S + MOST_TICK_S
    assert clock.read(200.0 + TICK_S) == 100.0 + 2 * TICK_S + MOST_TICK_S
    assert TICK_S < MOST_TICK_S < PATIENCE_S  # a wait that seems long after a stop is examined once more
