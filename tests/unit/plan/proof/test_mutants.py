"""Mutation tests of the proof: plans with one planted fault each, and an independent referee that judges them.

`check` and the referee must agree on every mutant: `check` must refuse all wrong mutants and accept all others. A
mutant that is correct at the stated cost is equivalent: it is replayed on numbers, and EQUIVALENT lists it with the
reason.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpccoll.algorithms import list_algorithms
from hpccoll.errors import PlanError
from hpccoll.plan import Operation, Plan, check, replay
from tests.unit.plan.proof.faults import FAULTS, NoRoom, site
from tests.unit.plan.referee import acted, fault_of, written

pytestmark = pytest.mark.xdist_group("mutants")  # one process makes the mutants, once for all tests of this file
RANKS = (2, 3, 4, 5, 8)
MESSAGES = [
    algorithm for algorithm in list_algorithms() if not algorithm.uses_shared_memory
]  # the others: test_shared_mutants.py
# Kinds of fault that leave some plans right and as cheap as stated: why, and which plans. The referee has computed each
# wanted chunk of each as an expression, replay as numbers (below); no survivor is believed because it stands here.
EQUIVALENT: dict[str, tuple[str, set[str]]] = {
    "crossed_peers": (
        "two children of a tree, alike in all that they hold then, change parents: another tree of the same height, "
        "and one rank, its root, still computes every bit; or two senders of the same chunks change receivers",
        {
            *("all_reduce/double_tree", "all_reduce/tree", "barrier/tree", "broadcast/tree", "reduce/tree"),
            *("all_gather/neighbor_exchange", "all_gather/recursive_doubling", "barrier/recursive_doubling"),
            *("broadcast/circulant",),
            *("all_reduce/dual_root", "barrier/hierarchical"),
        },
    ),
    "delayed_message": (
        "the receiver forwards nothing that was in it in the next round (a leaf, the root, or the last round's block), "
        "and the next round has messages of its own, so that the message may as well travel with them; or it is all "
        "that the last round has, which comes one later",
        {
            *("all_gather/bruck", "all_reduce/double_tree", "all_reduce/tree", "all_to_all/pairwise"),
            *("barrier/dissemination", "barrier/tree", "broadcast/chain", "broadcast/tree", "gather/tree"),
            *("reduce/chain", "reduce/tree", "reduce_scatter/bruck", "scatter/tree"),
            *("all_gather/circulant", "all_gather/recursive_doubling", "all_to_all/bruck", "barrier/double_ring"),
            *("barrier/linear", "barrier/recursive_doubling", "broadcast/circulant", "broadcast/double_tree"),
            *("reduce/circulant", "reduce/double_tree", "reduce/scatter_all_gather", "reduce_scatter/circulant"),
            *("reduce_scatter/neighbor_exchange",),
            *("all_reduce/bine", "all_reduce/chain", "all_reduce/dual_root", "all_to_all/hierarchical"),
            *("exscan/doubling_123", "exscan/tree", "scan/hillis_steele", "scan/tree"),
        },
    ),
    "flipped_order": (
        "one rank computes the chunk and the others copy its bits, so that the other operand order is the other order "
        "everywhere (recursive doubling, where each rank computes, is not among them)",
        {
            *("all_reduce/double_tree", "all_reduce/rabenseifner", "all_reduce/ring", "all_reduce/tree"),
            *("reduce/chain", "reduce/tree", "reduce_scatter/bruck", "reduce_scatter/ring"),
            *("reduce/circulant", "reduce/double_tree", "reduce/scatter_all_gather", "reduce_scatter/circulant"),
            *("reduce_scatter/neighbor_exchange", "reduce_scatter/pat", "reduce_scatter/recursive_halving"),
            *("all_reduce/bine", "all_reduce/chain", "all_reduce/dual_root", "all_reduce/hierarchical"),
            *("all_reduce/swing", "all_reduce/two_shot", "all_reduce/weighted"),
        },
    ),
    "hurried_message": (
        "the sender held all of the message one round earlier",
        {
            *("all_gather/bruck", "all_reduce/double_tree", "all_to_all/pairwise", "barrier/dissemination"),
            *("barrier/tree", "broadcast/chain", "broadcast/tree"),
            *("all_gather/circulant", "all_gather/neighbor_exchange", "all_gather/pat"),
            *("all_gather/recursive_doubling", "barrier/recursive_doubling", "broadcast/circulant"),
            *("broadcast/double_tree", "broadcast/scatter_all_gather", "reduce/double_tree"),
            *("reduce_scatter/circulant", "reduce_scatter/neighbor_exchange", "reduce_scatter/pat"),
            *("reduce_scatter/recursive_halving",),
            *("all_reduce/dual_root", "all_reduce/weighted", "all_to_all/hierarchical", "barrier/hierarchical"),
            *("scan/chain", "scan/tree"),
        },
    ),
    "swapped_rounds": (
        "the two rounds commute: each leaves alone what the other reads, or both run over the same distances in "
        "another order, by which the operands group differently, but alike on all ranks",
        {
            *("all_gather/bruck", "all_reduce/recursive_doubling", "all_reduce/tree", "all_to_all/pairwise"),
            *("barrier/dissemination", "barrier/tree", "broadcast/chain", "reduce/tree", "reduce_scatter/bruck"),
            *("all_gather/circulant", "barrier/linear", "barrier/recursive_doubling"),
            *("broadcast/scatter_all_gather", "reduce/circulant", "reduce_scatter/circulant"),
            *("all_reduce/dual_root", "all_to_all/hierarchical", "barrier/hierarchical"),
            *("exscan/chain", "exscan/doubling_123"),
        },
    ),
}


@dataclass(frozen=True)
class Mutant:
    """A plan with a planted fault of a kind, and the faults that the referee and `check` find."""

    kind: str
    plan: Plan
    original: Plan
    wrong: str | None  # what the referee says
    caught: str | None  # what check says of the plan alone
    dear: str | None  # what check says of the stated cost


def find_error(plan: Plan) -> str | None:
    """Return the error message of `check`; None if it accepts the plan."""
    try:
        check(plan)
    except PlanError as error:
        return str(error)
    return None


@cache
def mutants() -> tuple[Mutant, ...]:
    """Return all mutants; they are made once."""
    found = []
    for algorithm in MESSAGES:
        for n in RANKS:
            plan = algorithm.plan(n, root=n // 2, chunks=3)
            chunks = plan.moves().chunks
            for kind, plant in FAULTS.items():
                chance = random.Random(f"{kind} {plan.name} {n}")
                script = written(plan)
                try:
                    plant(site(script, chunks, chance))
                except NoRoom:
                    continue
                mutant = acted(script, plan)
                wrong, caught = fault_of(script, plan), find_error(replace(mutant, cost=None))
                dear = caught or find_error(mutant)  # a plan that is wrong is so at any cost
                found.append(Mutant(kind, mutant, plan, wrong, caught, dear))
    return tuple(found)


@pytest.mark.slow
def test_there_are_mutants_of_every_kind_over_all_algorithms():
    kinds = Counter(mutant.kind for mutant in mutants())
    plans = Counter(mutant.plan.name for mutant in mutants())
    assert len(mutants()) >= 1500
    assert sum(mutant.dear is not None for mutant in mutants()) >= 1400
    assert set(kinds) == set(FAULTS)
    assert set(plans) == {algorithm.full_name for algorithm in MESSAGES}


def test_plans_written_out_are_still_right():
    for algorithm in MESSAGES:
        for n in (1, *RANKS):
            plan = algorithm.plan(n, root=n - 1, chunks=2)
            script = written(plan)
            assert fault_of(script, plan) is None
            assert check(acted(script, plan)) == check(plan)


@pytest.mark.slow
def test_check_catches_exactly_what_the_referee_finds_wrong():
    disagreements = [
        f"{m.kind} in {m.plan.name} on {m.plan.ranks}: referee {m.wrong}, check {m.caught}"
        for m in mutants()
        if (m.wrong is None) != (m.caught is None)
    ]
    assert not disagreements


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_is_caught_somewhere(kind):
    assert any(mutant.caught for mutant in mutants() if mutant.kind == kind)


def test_survivors_are_those_listed_as_equivalent():
    survivors = {(m.kind, m.plan.name) for m in mutants() if m.dear is None}
    assert survivors == {(kind, name) for kind, (_, plans) in EQUIVALENT.items() for name in plans}


def make_inputs(plan: Plan, count: int, dtype: type) -> list[NDArray[Any] | None]:
    """Return the random input of each rank."""
    chance, chunks = np.random.default_rng(3), plan.moves().chunks
    sizes = plan.operation.chunk_sizes(count, plan.ranks, chunks)
    held = plan.operation.input_mask(np.arange(plan.ranks), plan.ranks, chunks, plan.root)
    return [chance.integers(-999, 999, int(sizes[mask].sum())).astype(dtype) for mask in held]


def test_equivalent_mutants_replay_to_the_same_values_in_one_order():
    for mutant in (m for m in mutants() if m.dear is None):
        data = make_inputs(mutant.plan, 13, np.int64)
        for mine, theirs in zip(
            replay(mutant.plan, 13, data, np.add), replay(mutant.original, 13, data, np.add), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
        if mutant.plan.operation is Operation.ALL_REDUCE:
            # Thirds of ordinary numbers: another order of the sum shows in the last bits.
            thirds = [array / 3 for array in make_inputs(mutant.plan, 13, np.float64) if array is not None]
            first, *others = replay(mutant.plan, 13, thirds, np.add)
            assert all(first.tobytes() == other.tobytes() for other in others)
