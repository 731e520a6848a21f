"""The barrier suite on real ranks: every barrier is measured and safe, a broken one is caught, a late rank is named."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.barrier_calls import BarrierCall, list_barrier_names, prepare_barriers
from hpccoll.barrier_suite.round_timer import RoundTimer
from hpccoll.barrier_suite.straggler import find_straggler
from hpccoll.barrier_suite.straggler_rounds import time_straggler_rounds
from hpccoll.barrier_suite.suite import BarrierSuite, SuiteOptions
from hpccoll.barrier_suite.summary import make_summary, name_nodes
from hpccoll.communicator import Communicator
from hpccoll.errors import UnknownNameError
from hpccoll.measure.clock import JobClock
from hpccoll.records import BarrierRecord
from hpccoll.runtime import job
from tests.record_schema import require_valid

pytestmark = pytest.mark.mpi
PATTERNS = (ArrivalPattern.ONE_LATE, ArrivalPattern.RANDOM)


@pytest.fixture(scope="module")
def layout(comm):
    return job.detect_layout(comm)


@pytest.fixture(scope="module")
def clock(comm, layout):
    return JobClock(comm, layout, "host")


@pytest.fixture(scope="module")
def timer(comm, layout, clock):
    return RoundTimer(comm, clock.current, layout.oversubscribed)


@pytest.fixture(scope="module")
def barriers(comm):
    own = Communicator(comm)
    ready, refused = prepare_barriers(own, comm, ["hpccoll", "mpi"], [], set())
    yield ready, refused
    for each in ready:
        each.free()
    own.close()


def make_suite(timer, layout, clock, barriers, *, rounds=4, patterns=PATTERNS, spread_s=None):
    options = SuiteOptions(patterns, rounds, 1.0, spread_s, 0)
    return BarrierSuite(timer, barriers, options, layout.ranks_per_node, None, clock.error_s)


def test_every_barrier_is_measured_and_safe_and_its_records_fulfil_the_schema(comm, timer, layout, clock, barriers):
    ready, refused = barriers
    names = {name.partition("/")[2] for name in (each.partition(":")[0] for each in refused)}
    assert names <= {"shared"}
    assert {each.name for each in ready} >= {
        f"{engine}/{name}" for engine in ("hpccoll", "mpi") for name in list_barrier_names(engine) if name not in names
    }
    shares: list[float] = []
    suite = make_suite(timer, layout, clock, ready)
    suite.on_share = shares.append
    suite.begin()
    records = list(suite.run())
    assert len(records) == 3 * len(ready)
    assert set(shares) == {1.0}
    if comm.rank:
        assert records == [None] * len(records)
        return
    for record in records:
        require_valid(json.loads(json.dumps(record.as_dict())))
        assert BarrierRecord.from_dict(json.loads(json.dumps(record.as_dict())), "") == record
        assert record.unsafe == 0, record.name
        assert record.rounds == len(record.completion_samples_us) == 4
        assert sorted(record.release_order) == list(range(comm.size))
        assert min(record.wait_us) >= 0
        assert (record.all_reduce_us is None) == (record.pattern != "none")
        has_model = comm.size > 1 and record.engine == "hpccoll" and record.algorithm != "all_reduce_1"
        assert (record.predicted_us is not None) == (record.machine is not None) == has_model
        skewed = record.pattern != "none" and comm.size > 1
        # Drawn patterns make another rank late in each round, so the median of a rank may be below the spread.
        assert (0 < max(record.planned_us) <= record.spread_us + 1e-2) if skewed else not any(record.planned_us)


def test_a_barrier_that_does_not_wait_is_unsafe(comm, timer, layout, clock):
    broken = BarrierCall("mine", "broken", lambda: None)
    suite = make_suite(timer, layout, clock, [broken], patterns=(ArrivalPattern.ASCENDING,), spread_s=0.02)
    suite.begin()
    records = list(suite.run())
    if comm.rank == 0:
        assert records[1].unsafe == (4 if comm.size > 1 else 0)


def test_ranks_that_enter_one_after_the_other_leave_with_the_last(comm, timer, layout, clock):
    """The first rank waits for the whole spread, the last one for none of it."""
    library = BarrierCall("mpi", "barrier", comm.Barrier)
    suite = make_suite(timer, layout, clock, [library], patterns=(ArrivalPattern.ASCENDING,), rounds=2, spread_s=0.1)
    suite.begin()
    records = list(suite.run())
    if comm.rank == 0 and comm.size > 1:
        wait_us = records[1].wait_us
        assert wait_us[0] > 50e3
        assert wait_us[-1] < wait_us[0] / 2


def test_rows_of_an_earlier_run_are_not_measured_again(comm, timer, layout, clock):
    library = [BarrierCall("mpi", "barrier", comm.Barrier), BarrierCall("mpi", "ibarrier", comm.Barrier)]
    complete = make_suite(timer, layout, clock, library)
    complete.begin()
    first = comm.bcast(list(complete.run()))
    kept = first[:3]  # both barriers without skew, and one with pattern one_late
    suite = make_suite(timer, layout, clock, library)
    suite.begin(kept)
    rest = list(suite.run())
    assert len(rest) == len(first) - len(kept)
    if comm.rank == 0:
        assert [record.key for record in suite.records] == [record.key for record in first]


def test_a_rank_that_is_late_beyond_its_pattern_is_named(comm, timer, layout, clock):
    late = comm.size - 1
    extra_s = 0.02 if comm.rank == late else 0.0
    times = time_straggler_rounds(
        timer, comm.Barrier, PATTERNS, rounds=36, barrier_s=1e-3, spread_s=1e-3, seed=1, extra_s=extra_s
    )
    assert (times is None) == (comm.rank > 0)
    if times is None:
        return
    report = find_straggler(times, clock.resolution_s)
    assert report.straggler == (late if comm.size > 1 else None), report.reason
    conditions = {"clock": "host", "clock_residual_us": 0.1, "clock_cost_s": 0.0, "oversubscribed": False}
    nodes = name_nodes(layout.hosts, layout.node)
    summary = make_summary([], report, nodes, None, **conditions, inject_delay=None, noise_rank=None)
    require_valid(json.loads(json.dumps(summary.as_dict())))
    assert [each.rank for each in summary.lateness] == list(range(comm.size))
    waits = [each.wait_us for each in summary.lateness]
    assert comm.size == 1 or waits.index(min(waits)) == late


def test_entries_are_those_of_the_plan(comm, timer):
    delays = np.arange(comm.size) * 5e-3 * np.ones((3, 1))
    times = timer.time_batch(comm.Barrier, delays, 0.05)
    if times is not None:
        assert (times.lateness >= 0).all()
        assert (np.diff(times.planned[:, 0]) > 0.049).all()
        assert (times.exit >= times.entry).all()


def test_the_clock_of_the_host_is_common_to_its_ranks(comm, layout):
    clock = JobClock(comm, layout, None)
    assert clock.name == ("host" if layout.nodes == 1 else "hca3")
    readings = comm.allgather((clock.current.now(), comm.Barrier(), clock.current.now()))
    assert max(first for first, _, _ in readings) <= min(last for _, _, last in readings)
    with pytest.raises(UnknownNameError, match="hca3"):
        JobClock(comm, layout, "sundial")


def test_only_the_clock_of_the_host_stays_the_same_when_refreshed(comm, layout):
    clock = JobClock(comm, layout, None)
    before = clock.current
    assert clock.refresh() is clock.current
    assert (clock.current is before) == (clock.name == "host")


def test_another_clock_is_refreshed(comm, layout):
    clock = JobClock(comm, layout, "skampi")
    assert clock.drifts == (comm.size > 1)
    before = clock.current
    assert clock.refresh() is clock.current is not before
    assert abs(clock.current.now() - time.perf_counter()) < 1.0
