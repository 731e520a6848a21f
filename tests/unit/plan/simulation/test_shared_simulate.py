"""The simulated cost of loads, stores and fences: cases computed by hand, periods, and refused machines."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, make_algorithm, make_hierarchical
from hpccoll.algorithms import shared_memory as family
from hpccoll.errors import PlanError, UsageError
from hpccoll.plan import (
    Cost,
    Fence,
    Groups,
    Link,
    Load,
    Machine,
    Operation,
    Plan,
    Rounds,
    Span,
    Step,
    check,
    run_in_groups,
    simulate,
)
from hpccoll.plan.simulation import build_simulated_timeline
from hpccoll.predict.forecast import can_run_on, fill_nodes
from hpccoll.predict.forecast_grid import forecast_grid

ALPHA, BETA, GAMMA = 1e-6, 1e-9, 1e-10


def make_node(ranks: int) -> Machine:
    """Return a machine model with all ranks on one node."""
    return Machine("node", ranks, Link.one_port(ALPHA, BETA), Link.one_port(1e-3, 1e-6), 1, GAMMA)


def test_two_shots_by_hand():
    # 9 elements of 4 bytes: three chunks of 12. Two are loaded and reduced, two are stored, between two fences.
    found = simulate(get_algorithm(Operation.ALL_REDUCE, "shared_two_shot").plan(3), make_node(3), 9)
    assert found.seconds == pytest.approx(2 * ALPHA + 4 * 12 * BETA + 2 * 12 * GAMMA, rel=1e-12)
    assert (found.steps, found.messages) == (2, 12)
    assert found.within.tolist() == [48, 48, 48]
    assert found.between.tolist() == [0, 0, 0]


def test_one_shot_by_hand():
    # Rank 0 copies its own and reduces two; the others load rank 0's over their own, and reduce theirs and one more.
    found = simulate(get_algorithm(Operation.ALL_REDUCE, "shared_one_shot").plan(3), make_node(3), 25)
    assert found.seconds == pytest.approx(2 * ALPHA + 200 * BETA + 3 * 100 * GAMMA, rel=1e-12)
    assert found.within.tolist() == [200, 200, 200]


def test_bytes_take_what_the_bands_of_the_link_say():
    link = Link(ALPHA, BETA, ALPHA, bands=((100.0, 3e-9),))
    machine = Machine("banded", 2, link, link, 1, 0.0)
    found = simulate(get_algorithm(Operation.BROADCAST, "shared").plan(2), machine, 76)
    assert found.seconds == pytest.approx(2 * ALPHA + 100 * BETA + 52 * 3e-9, rel=1e-12)


def test_a_fence_waits_for_the_last_of_its_own_group():
    # Ranks 0 1 | 2 3: of the first two rank 1 loads, of the others nobody.
    def make(rank: np.ndarray) -> Rounds:
        whole = Span(0, 1, 1)
        pairs: list[Step] = [Fence(rank - rank % 2)]
        rounds: list[list[Step]] = [pairs, [Load(np.where(rank == 1, 0, -1), whole, whole)], pairs]
        return Rounds(3, 1, lambda t: rounds[t])

    found = simulate(Plan(Operation.ALL_REDUCE, "waits", 4, 0, make), make_node(4), 25, full=True)
    late = 2 * ALPHA + 100 * BETA
    assert found.clocks_s == pytest.approx([late, late, 2 * ALPHA, 2 * ALPHA], rel=1e-12)
    assert found.path is not None
    assert [(w.round, w.rank, w.source, w.nbytes) for w in found.path.waits] == [(2, 0, 1, 0)]


@pytest.mark.parametrize("count", [1, 7, 24, 24 * 5])
@pytest.mark.parametrize("inter", ["ring", "recursive_doubling", "two_shot"])
def test_one_period_stands_for_all(count, inter):
    machine = replace(make_node(3), nics_per_node=2)
    plan = make_hierarchical("shared", inter).plan(24, 0, 1, fill_nodes(24, machine))
    few, all_ranks = simulate(plan, machine, count), simulate(plan, machine, count, full=True)
    times = 24 // few.simulated_ranks
    for column in ("clocks_s", "within", "between"):
        assert np.array_equal(np.tile(getattr(few, column), times), getattr(all_ranks, column)), column
    assert (few.steps, few.messages, few.seconds) == (all_ranks.steps, all_ranks.messages, all_ranks.seconds)
    assert few.path is not None
    assert all_ranks.path is not None
    assert [wait.source for wait in few.path.waits] == [wait.source for wait in all_ranks.path.waits]
    proof = check(plan)
    assert (few.steps, few.messages) == (proof.cost.steps, proof.messages) or count < 24
    if inter == "ring" and count >= 24:
        assert few.simulated_ranks in (3, 12, 24)
        assert few.simulated_ranks == 3 or count % 24


def test_a_fence_that_is_not_periodic_is_found_out():
    def make(rank: np.ndarray, n: int) -> Rounds:
        threes = Groups.from_nodes(n, (3,) * (n // 3))
        return run_in_groups(family.barrier, threes, rank)

    cost = Cost(0, Fraction(0), Fraction(0))
    plan = make_algorithm(Operation.BARRIER, "threes", make, lambda _: cost, 2, uses_shared_memory=True).plan(12)
    with pytest.raises(PlanError, match=r"states period 2, but in round 0 rank \d+ does not do .*leader of its fence"):
        simulate(plan, make_node(1), 0)
    assert simulate(replace(plan, period=3), make_node(3), 0).simulated_ranks == 3


@pytest.mark.parametrize("name", ["broadcast", "scatter"])
def test_a_false_period_is_found_out(name):
    plan = replace(get_algorithm(Operation.from_name(name), "shared").plan(8), period=1)
    with pytest.raises(
        PlanError, match=r"states period 1, but in round 1 .*(destination of its store|source of its load)"
    ):
        simulate(plan, make_node(1), 8)


def test_memory_is_not_shared_across_nodes():
    plan = get_algorithm(Operation.ALL_GATHER, "shared").plan(8)
    with pytest.raises(
        UsageError, match=r"all_gather/shared on 8 ranks: rank 3 loads from rank 4, which is on another"
    ):
        simulate(plan, make_node(4), 8)
    algorithm = get_algorithm(Operation.ALL_GATHER, "shared")
    assert [can_run_on(algorithm, n, make_node(4)) for n in (4, 5)] == [True, False]
    assert can_run_on(make_hierarchical("shared", "ring"), 8, make_node(4))
    both = (algorithm, get_algorithm(Operation.ALL_GATHER, "ring"))
    map_of = forecast_grid(both, make_node(4), (4, 8), (64,))
    assert map_of.find_winner(4, 64) is algorithm
    assert map_of.find_winner(8, 64) is both[1]


@pytest.mark.parametrize("name", ["all_reduce/shared_two_shot", "gather/shared", "barrier/shared"])
def test_a_timeline_ends_when_the_simulation_does(name):
    operation, _, algorithm = name.partition("/")
    plan = get_algorithm(Operation.from_name(operation), algorithm).plan(4)
    expected = simulate(plan, make_node(4), 100, full=True).seconds
    assert build_simulated_timeline(plan, make_node(4), 100).duration_us == pytest.approx(expected * 1e6)


def test_24576_ranks_with_fences_in_every_node():
    machine = Machine("Summit", 6, Link(3.4e-6, 2e-11, 1e-6), Link(9.6e-6, 8e-11, 1e-6), 2, 3e-12)
    plan = make_hierarchical("shared", "ring").plan(24_576, 0, 1, fill_nodes(24_576, machine))
    found = simulate(plan, machine, 24_576 * 4)
    assert found.simulated_ranks == 6
    assert found.steps == 2 + 2 * 4095
