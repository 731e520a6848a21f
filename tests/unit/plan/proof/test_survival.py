"""The proof of survival accepts the plans of built-in algorithms, and refuses changed ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.cli.verify import list_variants
from hpccoll.errors import PlanError
from hpccoll.plan import Fence, Operation, Plan, Rounds, check_survival


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_all_algorithms_survive(ranks):
    for algorithm in list_algorithms():
        for root, chunks, nodes in list_variants(algorithm, ranks):
            plan = algorithm.plan(ranks, root, chunks, nodes)
            proof = check_survival(plan)
            assert proof.deaths == 2 * ranks * plan.rounds().count


def change_fences(plan: Plan, change) -> Plan:
    """Return a plan with other fences."""

    def make(rank):
        return plan.make(rank).map_steps(lambda step: change(step) if isinstance(step, Fence) else step)

    return replace(plan, make=make)


def find_with_fences() -> Plan:
    algorithm = next(
        each for each in list_algorithms() if each.operation is Operation.ALL_REDUCE and each.uses_shared_memory
    )
    return algorithm.plan(4)


def test_a_plan_without_fences_takes_wrong_data_for_right():
    plan = find_with_fences()
    check_survival(plan)
    with pytest.raises(PlanError, match=r"returns a wrong chunk .* if rank . dies in round"):
        check_survival(change_fences(plan, lambda fence: Fence(np.full_like(fence.leader, -1))))


def test_a_barrier_that_leaves_out_a_rank_is_refused():
    plan = get_algorithm(Operation.BARRIER, "dissemination").plan(4)
    check_survival(plan)

    def make(rank):
        rounds = plan.make(rank)
        return Rounds(rounds.count - 1, rounds.chunks, rounds.at)

    with pytest.raises(PlanError, match="leaves the barrier without rank"):
        check_survival(replace(plan, make=make))


def test_some_survivors_of_a_broadcast_have_the_result():
    proof = check_survival(get_algorithm(Operation.BROADCAST, "chain").plan(4))
    assert 0 < proof.split_deaths < proof.deaths
