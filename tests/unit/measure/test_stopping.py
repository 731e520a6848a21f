"""The stopping rule: when the timing of a row stops, and the stated reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpccoll.errors import UsageError
from hpccoll.measure.interleaved import Contender, TimingOptions
from hpccoll.measure.stopping import StoppingRule
from hpccoll.measure.tuning import PruningBenchmark
from hpccoll.records import StopReason
from hpccoll.statistics import median_interval

RULE = StoppingRule(min_iterations=8, max_iterations=100, rel_halfwidth=0.05, budget_s=1.0)
STEADY, WILD = [10.0] * 20, [1.0, 100.0] * 10


def test_it_goes_on_while_the_interval_is_wide():
    assert RULE.decide(WILD, 0.5) is None


def test_it_stops_when_the_interval_is_tight():
    assert RULE.decide(STEADY, 0.5) is StopReason.CONVERGED


def test_tight_is_measured_by_half_the_width_over_the_median():
    samples = [*np.linspace(9.6, 10.4, 21)]
    found = median_interval(samples)
    share = (found.high - found.low) / 2 / found.value
    assert StoppingRule(8, 100, share * 1.001, 1.0).decide(samples, 0.0) is StopReason.CONVERGED
    assert StoppingRule(8, 100, share * 0.999, 1.0).decide(samples, 0.0) is None


def test_it_stops_when_the_budget_is_spent():
    assert RULE.decide(WILD, 0.999) is None
    assert RULE.decide(WILD, 1.0) is StopReason.BUDGET


def test_it_stops_at_the_most_iterations_whatever_they_say():
    assert RULE.decide(STEADY * 5, 0.1) is StopReason.ITERATIONS
    assert RULE.decide(WILD * 5, 5.0) is StopReason.ITERATIONS


def test_it_makes_the_fewest_iterations_whatever_they_cost():
    assert RULE.decide([10.0] * 7, 60.0) is None
    assert RULE.decide([10.0] * 8, 60.0) is StopReason.CONVERGED


def test_a_fixed_number_of_iterations_is_a_rule_too():
    rule = StoppingRule(3, 3, 0.05, 1.0)
    assert [rule.decide([10.0] * n, 9.0) for n in (1, 2, 3)] == [None, None, StopReason.ITERATIONS]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_nothing_converges_before_there_is_an_interval_of_95_percent(n):
    rule = StoppingRule(1, 100, 0.05, 1.0)
    assert rule.decide([10.0] * n, 0.0) is None
    assert rule.decide([10.0] * 6, 0.0) is StopReason.CONVERGED


def test_reasons_are_the_words_of_the_record():
    assert [str(stop) for stop in StopReason] == ["converged", "budget", "iterations"]


def test_the_decision_depends_on_nothing_but_the_numbers():
    samples = np.random.default_rng(3).lognormal(0, 0.3, 50)
    again = [RULE.decide(kind(samples), 0.3) for kind in (list, tuple, np.asarray)]
    assert again == [again[0]] * 3


def test_looking_again_costs_a_known_little_coverage():
    rng = np.random.default_rng(11)
    rule = StoppingRule(6, 400, 0.05, 1e9)
    hits = []
    for _ in range(300):
        samples = list(rng.lognormal(0, 0.2, 6))
        while rule.decide(samples, 0.0) is None:
            samples += list(rng.lognormal(0, 0.2, 6))
        found = median_interval(samples)
        hits.append(found.low <= 1 <= found.high)
    assert 0.85 < np.mean(hits) < 0.99


@pytest.mark.parametrize(
    ("given", "option"),
    [((0, 5, 0.1, 1.0), "--iterations"), ((6, 5, 0.1, 1.0), "--iterations"), ((1, 5, 0.1, 0.0), "--budget")],
)
def test_bounds_that_contradict_each_other_are_refused(given, option):
    with pytest.raises(UsageError, match=option):
        StoppingRule(*given)


def test_a_halfwidth_that_cannot_be_reached_is_refused():
    with pytest.raises(UsageError):
        StoppingRule(1, 5, float("nan"), 1.0)


@pytest.mark.parametrize(("wrong", "stop"), [(0, StopReason.BUDGET), (3, None)])
def test_a_fast_wrong_result_does_not_end_the_timing_of_others(wrong, stop):
    fast, slow = (
        Contender("hpccoll", "ring", int, lambda: None, samples_us=[us] * 6, wrong=count)
        for us, count in ((1.0, wrong), (10.0, 0))
    )
    nothing: Any = None
    bench = PruningBenchmark(nothing, nothing, [fast, slow], TimingOptions(RULE, warmup=1, check=True, seed=0))
    assert bench.decide_stop(slow) is stop
