"""The metrics of a barrier's rounds, on rounds whose numbers can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.barrier_suite.round_times import RoundTimes, join_rounds

# Three ranks: rank 2 enters 5 s late; the ranks leave at 7, 8 and 6.
ENTRY, EXIT = [1.0, 2.0, 5.0], [7.0, 8.0, 6.0]


def make_rounds(*rounds: tuple[list[float], list[float]], planned: list[float] | None = None) -> RoundTimes:
    entry, leave = (np.array([each[at] for each in rounds]) for at in (0, 1))
    return RoundTimes(np.zeros_like(entry) if planned is None else np.tile(planned, (len(rounds), 1)), entry, leave)


def test_the_metrics_of_one_round():
    times = make_rounds((ENTRY, EXIT), planned=[1.0, 1.0, 1.0])
    assert (times.rounds, times.ranks) == (1, 3)
    assert times.entry_spread.tolist() == [4.0]
    assert times.exit_skew.tolist() == [2.0]
    assert times.completion.tolist() == [3.0]
    assert times.wait.tolist() == [[6.0, 6.0, 1.0]]
    assert times.lateness.tolist() == [[0.0, 1.0, 4.0]]
    assert times.get_median_entries().tolist() == [0.0, 1.0, 4.0]
    assert times.get_median_exits().tolist() == [6.0, 7.0, 5.0]
    assert times.find_release_order() == [2, 0, 1]


def test_medians_are_over_rounds_and_do_not_depend_on_when_a_round_began():
    shifted = make_rounds((ENTRY, EXIT), ([101.0, 102.0, 105.0], [107.0, 108.0, 106.0]), ([0, 0, 0], [9, 9, 9]))
    assert shifted.get_median_entries().tolist() == [0.0, 1.0, 4.0]
    assert shifted.get_median_exits().tolist() == [6.0, 7.0, 5.0]
    assert shifted.completion.tolist() == [3.0, 3.0, 9.0]


def test_the_release_order_compares_the_exits_within_each_round():
    """Rank 1 leaves first in two of three rounds, though its median time of exit is the larger one."""
    times = make_rounds(([0.0, 0.0], [10.0, 9.0]), ([0.0, 0.0], [8.0, 7.0]), ([0.0, 0.0], [7.0, 11.0]))
    assert np.median(times.exit, axis=0).tolist() == [8.0, 9.0]
    assert times.find_release_order() == [1, 0]


@pytest.mark.parametrize(
    ("first_exit", "error", "unsafe"),
    [(5.0, 0.0, 0), (4.9, 0.0, 1), (4.9, 0.2, 0), (4.7, 0.2, 1), (1.5, 0.0, 1)],
)
def test_a_round_is_unsafe_if_a_rank_leaves_before_the_last_entry(first_exit, error, unsafe):
    times = make_rounds((ENTRY, EXIT), (ENTRY, [first_exit, 8.0, 6.0]))
    assert times.count_unsafe_rounds(error) == unsafe


def test_a_round_is_late_if_any_rank_enters_after_its_plan():
    times = make_rounds((ENTRY, EXIT), ([1.0, 2.0, 3.0], EXIT), planned=[1.0, 2.0, 3.0])
    assert times.count_late_rounds(0.5) == 1
    assert times.count_late_rounds(2.5) == 0


@pytest.mark.parametrize(
    ("last_exit", "absorbed"),
    [(8.0, 0.0), (5.0, 0.75), (12.0, -1.0), (6.0, 0.5)],
    ids=["nothing", "all that a barrier of 3 s can hide", "the skew slows it down", "half"],
)
def test_absorption_is_the_time_saved_after_the_last_entry_over_the_spread(last_exit, absorbed):
    assert make_rounds((ENTRY, [5.0, 5.0, last_exit])).compute_absorbed(3.0) == pytest.approx(absorbed)


def test_nothing_can_be_absorbed_where_all_enter_together():
    assert make_rounds(([1.0, 1.0], [2.0, 2.0])).compute_absorbed(1.0) is None


def test_parts_are_joined_in_order():
    one, two = make_rounds((ENTRY, EXIT)), make_rounds(([0, 0, 0], [1, 1, 1]), ([0, 0, 0], [2, 2, 2]))
    assert join_rounds([one, two]).exit[:, 0].tolist() == [7.0, 1.0, 2.0]
