"""The late rank: injected delays are found and the guilty rank is named; noise and waiting ranks are not."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.round_times import RoundTimes
from hpccoll.barrier_suite.straggler import MIN_ROUNDS, find_last, find_straggler, subtract_others

NOISE_S, BARRIER_S, RESOLUTION_S = 1e-6, 5e-6, 3e-7
ROUNDS = 240


def make_times(
    random: np.random.Generator,
    ranks: int,
    late_s: np.ndarray | float = 0.0,
    *,
    pattern: ArrivalPattern = ArrivalPattern.NONE,
    spread_s: float = 20e-6,
    rounds: int = ROUNDS,
) -> RoundTimes:
    """Return rounds of a barrier in which every rank leaves some time after the last one has entered."""
    begin = 1e-3 * np.arange(rounds)[:, None]
    planned = begin + pattern.make_delays(rounds, ranks, spread_s, int(random.integers(1000)))
    # Most disturbances are short; one in fifty lasts long.
    disturbed = random.exponential(NOISE_S, (rounds, ranks)) + (random.random((rounds, ranks)) < 0.02) * 1e-3
    entry = planned + disturbed + late_s
    leave = entry.max(axis=1, keepdims=True) + BARRIER_S + random.exponential(0.3 * NOISE_S, (rounds, ranks))
    return RoundTimes(planned, entry, leave)


def measure_skew_noise(random: np.random.Generator, ranks: int) -> float:
    return find_straggler(make_times(random, ranks), RESOLUTION_S).noise_s


def make_delay(ranks: int, rank: int, seconds: float) -> np.ndarray:
    """Return the delay of each rank, in which one rank is late."""
    return np.where(np.arange(ranks) == rank, seconds, 0.0)


def test_a_delay_of_five_times_the_noise_is_found_for_any_pattern_and_rank():
    random = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        ranks = int(random.integers(2, 9))
        late, pattern = int(random.integers(ranks)), ArrivalPattern(random.choice(list(ArrivalPattern)))
        times = make_times(
            random, ranks, make_delay(ranks, late, 5 * measure_skew_noise(random, ranks)), pattern=pattern
        )
        found += find_straggler(times, RESOLUTION_S).straggler == late
    assert found >= 198


def test_without_a_delay_nobody_is_named_for_any_pattern():
    random = np.random.default_rng(1)
    patterns = [ArrivalPattern(random.choice(list(ArrivalPattern))) for _ in range(200)]
    named = [
        find_straggler(make_times(random, int(random.integers(2, 9)), pattern=pattern), RESOLUTION_S).straggler
        for pattern in patterns
    ]
    assert len(named) - named.count(None) <= 2


def test_the_rank_that_waits_longest_is_the_victim_and_not_named():
    random = np.random.default_rng(2)
    report = find_straggler(make_times(random, 4, make_delay(4, 2, 50e-6)), RESOLUTION_S)
    waits = [each.wait_s for each in report.ranks]
    assert report.straggler == 2
    assert waits.index(min(waits)) == 2
    assert report.ranks[2].wait_deficit_s == pytest.approx(50e-6, rel=0.1)
    assert report.ranks[2].last_arrivals > 0.9 * ROUNDS
    assert report.reason.startswith("rank 2 entered last in ")


def test_a_rank_that_the_pattern_makes_late_is_not_late():
    random = np.random.default_rng(3)
    for pattern in ArrivalPattern:
        report = find_straggler(make_times(random, 4, pattern=pattern, spread_s=1e-3), RESOLUTION_S)
        assert report.straggler is None, pattern
        assert report.reason.startswith("no rank is late beyond noise")


@pytest.mark.parametrize("pattern", ArrivalPattern)
def test_planned_waits_are_subtracted(pattern):
    planned = np.arange(ROUNDS)[:, None] + pattern.make_delays(ROUNDS, 3, 0.25, seed=0)
    times = RoundTimes(planned, planned, planned.max(axis=1, keepdims=True) + np.full(3, 0.5))
    ranks = find_straggler(times, RESOLUTION_S).ranks
    assert [each.wait_s for each in ranks] == pytest.approx([0.5] * 3)
    assert [each.wait_deficit_s for each in ranks] == pytest.approx([0.0] * 3)


def test_a_rank_that_leaves_late_but_enters_on_time_is_not_named():
    times = make_times(np.random.default_rng(4), 4)
    times.exit[:, 3] += 100e-6
    assert find_straggler(times, RESOLUTION_S).straggler is None


def test_a_rank_that_is_late_in_one_stretch_of_the_run_is_not_named():
    late_s = np.zeros((ROUNDS, 4))
    late_s[: ROUNDS // 2, 1] = 50e-6
    assert find_straggler(make_times(np.random.default_rng(5), 4, late_s), RESOLUTION_S).straggler is None


def test_a_rank_that_is_very_late_in_one_burst_is_not_named():
    late_s = np.zeros((ROUNDS, 4))
    late_s[ROUNDS // 2 : ROUNDS // 2 + 20, 1] = 20e-3
    assert find_straggler(make_times(np.random.default_rng(9), 4, late_s), RESOLUTION_S).straggler is None


def test_a_rank_that_chance_can_make_late_is_not_named():
    """In 16 of 24 rounds of two ranks, rank 1 is late; one of two ranks is last that often in one of 13 runs."""
    for rounds, named in ((24, None), (240, 1)):
        late_s = np.where((np.arange(rounds) % 3 < 2)[:, None] & (np.arange(2) == 1), 50e-6, 0.0)
        late_s[np.arange(rounds) % 3 == 2, 0] = 50e-6
        times = make_times(np.random.default_rng(10), 2, late_s, rounds=rounds)
        assert find_straggler(times, 30e-6).straggler == named


def test_one_of_many_ranks_that_is_last_as_often_by_chance_is_not_named():
    """One rank of 16 given before is last in 33 of 240 rounds in one of 51,000 runs, but any rank in one of 3,200."""
    late_s = np.zeros((ROUNDS, 16))
    late_s[:, :8] = 50e-6  # eight ranks are alike
    last = np.array([0] * 33 + [1 + turn % 7 for turn in range(ROUNDS - 33)])
    late_s[np.arange(ROUNDS), np.random.default_rng(12).permutation(last)] += 1e-6
    planned = np.arange(ROUNDS)[:, None] + np.zeros((ROUNDS, 16))
    report = find_straggler(RoundTimes(planned, planned + late_s, planned + 1e-3), RESOLUTION_S)
    assert report.ranks[0].last_arrivals == 33
    assert report.ranks[0].excess_s > report.threshold_s
    assert report.straggler is None


def test_a_late_rank_that_the_barrier_releases_late_is_named():
    times = make_times(np.random.default_rng(11), 4, make_delay(4, 1, 50e-6))
    times.exit[:, 1] += 80e-6
    report = find_straggler(times, RESOLUTION_S)
    assert report.straggler == 1
    assert report.ranks[1].wait_deficit_s < 0
    assert report.reason.endswith(" us)")


def test_a_rank_whose_core_is_often_taken_is_named_though_it_is_mostly_on_time():
    random = np.random.default_rng(6)
    late_s = np.zeros((ROUNDS, 4))
    late_s[::5, 3] = 4e-3  # one round in five
    report = find_straggler(make_times(random, 4, late_s), RESOLUTION_S)
    assert report.straggler == 3
    assert report.ranks[3].excess_s < 1e-5
    assert report.reason.startswith("rank 3 is often late: the others waited for it alone")


def test_of_two_ranks_that_are_often_late_none_is_named():
    late_s = np.zeros((ROUNDS, 4))
    late_s[::5, 3], late_s[2::5, 1] = 4e-3, 4e-3
    assert find_straggler(make_times(np.random.default_rng(6), 4, late_s), RESOLUTION_S).straggler is None


def test_lateness_below_the_error_of_the_clock_is_no_evidence():
    late_s = make_delay(2, 1, 8e-6)
    assert find_straggler(make_times(np.random.default_rng(7), 2, late_s), RESOLUTION_S).straggler == 1
    assert find_straggler(make_times(np.random.default_rng(7), 2, late_s), 20e-6).straggler is None


@pytest.mark.parametrize(("ranks", "rounds", "words"), [(1, ROUNDS, "one rank"), (4, MIN_ROUNDS - 1, "too few")])
def test_too_little_evidence_names_nobody_and_says_why(ranks, rounds, words):
    late_s = make_delay(ranks, 0, 1e-3)
    report = find_straggler(make_times(np.random.default_rng(8), ranks, late_s, rounds=rounds), RESOLUTION_S)
    assert report.straggler is None
    assert words in report.reason


@pytest.mark.parametrize("ranks", range(2, 8))
def test_the_median_of_the_other_ranks_is_subtracted(ranks):
    values = np.random.default_rng(ranks).integers(0, 5, (50, ranks)).astype(float)  # with equal values
    others = [np.median(np.delete(values, rank, axis=1), axis=1) for rank in range(ranks)]
    assert subtract_others(values).tolist() == (values - np.stack(others, axis=1)).tolist()


def test_the_last_rank_and_its_distance_to_the_second():
    last, gaps = find_last(np.array([[1.0, 5.0, 3.0], [9.0, 2.0, 4.0]]))
    assert last.tolist() == [1, 0]
    assert gaps.tolist() == [2.0, 5.0]
