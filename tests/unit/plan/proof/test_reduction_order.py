"""Plans that reduce in rank order: the analysis by intervals agrees with symbolic expressions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hpccoll.algorithms import list_algorithms
from hpccoll.errors import PlanError
from hpccoll.plan import IntArray, Move, Op, Operation, Plan, Rounds, Step, check, keeps_rank_order, replay

REDUCING = [each for each in list_algorithms() if each.operation.reduces]


def concatenates_in_order(plan: Plan) -> bool:
    """Whether replay concatenates the letters of the ranks in alphabetical order in every output."""
    n, chunks = plan.ranks, plan.rounds().chunks
    count = chunks // {Operation.REDUCE_SCATTER: n, Operation.EXSCAN: 2}.get(plan.operation, 1)
    length = count * (n if plan.operation is Operation.REDUCE_SCATTER else 1)
    letters = [np.array([chr(ord("a") + rank)] * length, object) for rank in range(n)]
    outputs = replay(plan, count, letters, np.add)
    return all("".join(sorted(text)) == text for output in outputs for text in output.tolist())


@pytest.mark.parametrize("algorithm", REDUCING, ids=lambda algorithm: algorithm.full_name)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_a_plan_keeps_rank_order_if_replay_joins_letters_in_alphabetical_order(algorithm, n):
    for root in {0, n - 1} if "root" in algorithm.parameters else {0}:
        plan = algorithm.plan(n, root, chunks=2)
        assert keeps_rank_order(plan) == concatenates_in_order(plan)


def flip(step: Step) -> Step:
    """The step with the other operand order."""
    return replace(step, op=Op.OWN_FIRST) if isinstance(step, Move) and np.any(step.op) else step


def give(rounds: Rounds, _: IntArray) -> Rounds:
    return rounds


def test_some_plans_keep_the_order_and_some_do_not():
    kept = {each.full_name for each in REDUCING if keeps_rank_order(each.plan(4))}
    assert {"all_reduce/recursive_doubling", "all_reduce/tree", "reduce/chain", "scan/tree"} <= kept
    assert kept.isdisjoint({"all_reduce/ring", "reduce_scatter/ring"})


def test_a_scan_that_permutes_the_ranks_is_refused():
    for algorithm in REDUCING:
        if not algorithm.operation.is_scan:
            continue
        plan = algorithm.plan(4, chunks=2)
        flipped = plan.rounds().map_steps(flip)
        with pytest.raises(PlanError, match="is not reduced in the order of the ranks"):
            check(replace(plan, make=partial(give, flipped)))
