"""The simulator's prediction of barriers whose ranks enter at different times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.barrier_suite.prediction import fit_to_barriers, predict_barrier
from hpccoll.plan import Machine, Operation, simulate

ALPHA_S, CALL_S, FENCE_S = 1e-6, 2e-6, 3e-6
MACHINE = replace(Machine.flat(ALPHA_S, 0.0, 0.0), ranks_per_node=4, call_s=CALL_S, fence_s=FENCE_S)


def make_plan(name, ranks=4):
    return get_algorithm(Operation.BARRIER, name).plan(ranks, 0, 1, (ranks,))


def test_without_skew_the_prediction_is_the_simulated_time():
    for name in list_algorithm_names(Operation.BARRIER):
        plan = make_plan(name)
        found = predict_barrier(plan, MACHINE, np.zeros(4))
        assert found.completion_s == pytest.approx(simulate(plan, MACHINE, 0).seconds), name


@pytest.mark.parametrize(
    ("name", "messages_after_the_last_entry"),
    [("dissemination", 2), ("tree", 4), ("linear", 4), ("double_ring", 3)],
)
def test_what_is_left_to_do_after_the_last_rank_has_entered(name, messages_after_the_last_entry):
    """Rank 3 enters last: two rounds of dissemination, one message up and three down for linear, a lap of the ring."""
    found = predict_barrier(make_plan(name), MACHINE, np.array([0.0, 0.0, 0.0, 1e-3]))
    assert found.completion_s == pytest.approx(CALL_S + messages_after_the_last_entry * ALPHA_S)


def test_ranks_leave_a_fence_together_and_a_linear_barrier_one_by_one():
    late = np.array([0.0, 1e-3, 0.0, 0.0])
    assert predict_barrier(make_plan("shared"), MACHINE, late).exit_skew_s == pytest.approx(0.0)
    assert predict_barrier(make_plan("linear"), MACHINE, late).exit_skew_s == pytest.approx(2 * ALPHA_S)


def test_only_differences_of_entries_count():
    late = np.array([4.0, 5.0, 5.001, -5.0])
    assert predict_barrier(make_plan("tree"), MACHINE, late).completion_s == pytest.approx(
        predict_barrier(make_plan("tree"), MACHINE, late + 100.0).completion_s
    )


def test_the_fit_finds_the_costs_that_explain_all_barriers():
    plans = [make_plan(name) for name in list_algorithm_names(Operation.BARRIER)]
    times = [predict_barrier(plan, MACHINE, np.zeros(4)).completion_s for plan in plans]
    machine = fit_to_barriers(plans, times, (4,))
    assert machine is not None
    assert machine.within.alpha_s == pytest.approx(ALPHA_S, rel=0.01)
    assert machine.call_s == pytest.approx(CALL_S, rel=0.01)
    assert machine.fence_s == pytest.approx(FENCE_S, rel=0.01)


def test_there_is_no_fit_for_one_rank_few_barriers_or_nodes_of_different_sizes():
    plans = [make_plan(name) for name in ("linear", "tree", "dissemination")]
    assert fit_to_barriers(plans, [1e-5] * 3, (4,)) is not None
    assert fit_to_barriers(plans[:2], [1e-5] * 2, (4,)) is None
    assert fit_to_barriers(plans, [1e-5] * 3, (3, 1)) is None
    alone = [make_plan(name, 1) for name in ("linear", "tree", "dissemination")]
    assert fit_to_barriers(alone, [1e-5] * 3, (1,)) is None
