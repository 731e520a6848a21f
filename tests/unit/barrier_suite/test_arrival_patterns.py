"""Arrival patterns: their shape, their scale, and the same delays on every rank."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern

SKEWED = [pattern for pattern in ArrivalPattern if pattern is not ArrivalPattern.NONE]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("pattern", SKEWED)
def test_the_first_rank_is_on_time_and_the_last_is_late_by_the_spread(pattern, ranks):
    delays = pattern.make_delays(5, ranks, 2.0, seed=3)
    assert delays.shape == (5, ranks)
    assert delays.min(axis=1).tolist() == [0.0] * 5
    assert delays.max(axis=1).tolist() == pytest.approx([2.0] * 5)


def test_delays_are_the_same_for_the_same_seed_and_differ_between_seeds():
    for pattern in (ArrivalPattern.RANDOM, ArrivalPattern.ONE_LATE, ArrivalPattern.BIMODAL):
        seen = {pattern.make_delays(2, 16, 1.0, seed).tobytes() for seed in range(20)}
        assert pattern.make_delays(2, 16, 1.0, 7).tobytes() in seen
        assert len(seen) > 5


def test_the_shape_of_each_pattern():
    def shape(pattern):
        return ArrivalPattern(pattern).make_delays(1, 4, 3.0, 0)[0].tolist()

    assert shape("none") == [0, 0, 0, 0]
    assert shape("ascending") == [0, 1, 2, 3]
    assert shape("descending") == [3, 2, 1, 0]
    assert sorted(shape("one_late")) == [0, 0, 0, 3]
    assert sorted(shape("bimodal")) == [0, 0, 3, 3]
    assert len(set(shape("random"))) == 4


def test_only_random_delays_differ_from_round_to_round():
    for pattern in SKEWED:
        rounds = {row.tobytes() for row in pattern.make_delays(10, 4, 1.0, 0)}
        assert len(rounds) == (10 if pattern is ArrivalPattern.RANDOM else 1)


def test_one_rank_is_never_late():
    assert all(not np.any(pattern.make_delays(3, 1, 1.0, 0)) for pattern in ArrivalPattern)
