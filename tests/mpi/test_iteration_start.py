"""Start windows on real ranks: all ranks start together, late rounds do not count, and windows can fail."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np
import pytest

from hpccoll.errors import UsageError
from hpccoll.measure import iteration_start
from hpccoll.measure.clock import SyncBudget
from hpccoll.measure.core_share import OWN_CORE, measure_core_share
from hpccoll.measure.interleaved import Contender, InterleavedBenchmark, TimingOptions
from hpccoll.measure.iteration_start import LATE_S, BarrierStarter, IterationStart, WindowStarter, choose_span_s
from hpccoll.measure.stopping import StoppingRule
from hpccoll.records import StartMethod

RULE = StoppingRule(10, 10, 1.0, 20.0)


# Start windows need several ranks, and a core for each rank.
needs_cores = pytest.mark.needs_ranks(2, len(os.sched_getaffinity(0)))


class Host:
    """A workload without data, in host memory."""

    on_device = False

    def make_stream_timer(self) -> None:
        """Return None: there is no stream."""

    def synchronize(self) -> None:
        """Do nothing."""


class NoData:
    """A workload that has nothing to reset or check."""

    module = Host()

    def reset(self) -> None:
        """Do nothing."""


def race(comm, call, starter) -> tuple[InterleavedBenchmark, Contender]:
    """Return a benchmark of one call."""
    contender = Contender("mpi", None, call, lambda: None)
    workload: Any = NoData()
    options = TimingOptions(RULE, warmup=1, check=False, seed=0)
    return InterleavedBenchmark(comm, workload, [contender], options, starter), contender


@needs_cores
def test_no_rank_starts_before_the_announced_time(comm):
    starter = WindowStarter(comm, window_s=0.02)
    for _ in range(5):
        if comm.rank == comm.size - 1:
            time.sleep(0.005)
        start_s, delay_s, missed = starter.wait(works_in_threads=False)
        assert time.perf_counter() >= start_s
        announced = set(comm.allgather(starter.clock.to_global(start_s)))
        assert max(announced) - min(announced) < 1e-5
        assert missed is (delay_s > starter.window_s)


@needs_cores
def test_samples_are_those_of_rounds_that_all_ranks_started_in_time(comm, monkeypatch):
    rounds = itertools.count()
    # On busy cores, ranks miss many more starts, which must not end in barriers here.
    monkeypatch.setattr("hpccoll.measure.interleaved.MOST_DISCARDED", 10**6)

    def wait(self, works_in_threads):
        found = original(self, works_in_threads)
        if next(rounds) in (1, 3, 5) and comm.rank == 1:
            time.sleep(0.001)
        return found

    original = WindowStarter.wait
    starter = WindowStarter(comm)
    monkeypatch.setattr(WindowStarter, "wait", wait)
    benchmark, contender = race(comm, comm.Barrier, starter)
    assert [each.name for each in benchmark.run()] == ["mpi/-"]
    assert len(contender.samples_us) == RULE.max_iterations
    assert contender.discarded >= 3
    assert contender.start is StartMethod.WINDOW
    assert contender.clock_residual_us is not None


@needs_cores
def test_a_fixed_window_that_every_rank_misses_is_a_usage_error(comm, monkeypatch):
    monkeypatch.setattr(IterationStart, "is_late", lambda *_: True)
    benchmark, _ = race(comm, comm.Barrier, WindowStarter(comm, window_s=1e-9))
    with pytest.raises(UsageError, match=r"--window 0.001 is too short: .* missed the start .* leave the option out"):
        list(benchmark.run())


@needs_cores
def test_barriers_replace_windows_that_every_rank_misses(comm, monkeypatch):
    monkeypatch.setattr(IterationStart, "is_late", lambda start, *_: start.start_s < float("inf"))
    benchmark, contender = race(comm, comm.Barrier, WindowStarter(comm))
    list(benchmark.run())
    assert contender.start is StartMethod.BARRIER
    assert contender.discarded > RULE.max_iterations
    assert len(contender.samples_us) == RULE.max_iterations
    assert contender.clock_residual_us is None


@needs_cores
def test_windows_are_as_long_as_ranks_need(comm):
    starter = WindowStarter(comm)
    starter.adapt(np.full(10, 40e-6))
    assert starter.window_s == pytest.approx(60e-6)
    for _ in range(20):
        starter.adapt(np.full(10, 1e-9))
    assert starter.window_s == iteration_start.SHORTEST_WINDOW_S
    starter.adapt(np.full(10, 1.0))
    assert starter.window_s == iteration_start.LONGEST_WINDOW_S
    fixed = WindowStarter(comm, window_s=0.5)
    fixed.adapt(np.full(10, 1e-9))
    assert fixed.window_s == 0.5


@needs_cores
def test_the_clock_is_synchronized_again_when_it_is_old(comm, monkeypatch):
    starter = WindowStarter(comm)
    first = starter.clock
    starter.refresh()
    assert starter.clock is first
    monkeypatch.setattr(iteration_start, "REFRESH_S", 0.0)
    starter.refresh()
    assert starter.clock is not first


def test_a_barrier_start_is_never_late(comm):
    starter = BarrierStarter(comm)
    assert not starter.wait(works_in_threads=False).is_late(time.perf_counter(), 0.0)
    assert starter.measure_residual() is None
    assert starter.describe_clock() == {}


def test_a_rank_may_start_a_long_iteration_later_than_a_short_one():
    start = IterationStart(100.0, 0.0, missed=False)
    assert not start.is_late(100.0 + LATE_S / 2, 1e-6)
    assert start.is_late(100.0 + 2 * LATE_S, 1e-6)
    assert not start.is_late(100.0 + 2 * LATE_S, 1e-3)
    assert start._replace(missed=True).is_late(100.0, 1e-3)


@needs_cores
def test_barriers_replace_windows_if_synchronizing_again_would_exceed_its_share(comm, monkeypatch):
    budget = SyncBudget()
    starter = WindowStarter(comm, budget=budget)
    monkeypatch.setattr(iteration_start, "REFRESH_S", 0.0)
    budget.spent_s = 1e9
    starter.refresh()
    assert starter.method is StartMethod.WINDOW
    assert starter.measure_residual() is None
    monkeypatch.setattr(iteration_start, "STALE_S", 0.0)
    starter.refresh()
    assert str(starter.method) == "barrier"
    assert starter.barrier_reason == "as synchronizing clocks would take more than 10% of the run"
    benchmark, contender = race(comm, comm.Barrier, starter)
    contender.start = StartMethod.WINDOW
    list(benchmark.run())
    assert contender.start is StartMethod.BARRIER
    assert len(contender.samples_us) == RULE.max_iterations


@needs_cores
def test_the_first_synchronization_takes_what_its_budget_has(comm):
    budget = SyncBudget()
    budget.spent_s = budget.left_s - 1e-3
    assert choose_span_s(comm, "hca3", budget) is None
    budget.spent_s -= 1.0
    assert choose_span_s(comm, "hca3", budget) == iteration_start.SPAN_S


def test_ranks_that_share_cores_are_found_by_measurement(comm):
    share = measure_core_share(comm)
    assert 0 < share <= 1
    if comm.size > len(os.sched_getaffinity(0)):
        assert share < OWN_CORE
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert comm.size == 1 or measure_core_share(comm) < OWN_CORE
    finally:
        os.sched_setaffinity(0, mine)
