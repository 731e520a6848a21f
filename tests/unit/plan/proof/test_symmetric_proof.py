"""The proof by symmetry equals the full proof, refuses what the full proof refuses, and takes a million ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import list_algorithms
from hpccoll.algorithms.loader import prove_algorithm
from hpccoll.errors import PlanError
from hpccoll.plan import Move, Op, Plan, Rounds, check
from hpccoll.plan.proof.symmetric_proof import OPERATIONS, can_prove_by_symmetry, prove_by_symmetry

SYMMETRIC = [
    algorithm for algorithm in list_algorithms()
    if algorithm.operation in OPERATIONS and can_prove_by_symmetry(algorithm.plan(8))
]  # fmt: skip


def change_move(plan: Plan, round_number: int, **changes) -> Plan:
    """Return a plan that is like `plan`, but for some values of the first message of one round."""

    def make(rank) -> Rounds:
        rounds = plan.make(rank)

        def at(t):
            steps = list(rounds.at(t))
            if t == round_number and isinstance(steps[0], Move):
                steps[0] = replace(steps[0], **{key: change(steps[0]) for key, change in changes.items()})
            return steps

        return Rounds(rounds.count, rounds.chunks, at)

    return replace(plan, make=make)


def test_the_rings_and_logarithmic_plans_are_among_them():
    names = {algorithm.full_name for algorithm in SYMMETRIC}
    assert {"all_reduce/ring", "all_gather/bruck", "reduce_scatter/circulant", "all_gather/neighbor_exchange"} <= names


@pytest.mark.parametrize("algorithm", SYMMETRIC, ids=lambda algorithm: algorithm.full_name)
def test_equal_to_the_full_proof(algorithm):
    proven = 0
    for n in (2, 3, 4, 6, 8, 12, 31, 64, 128):
        plan = algorithm.plan(n)
        if can_prove_by_symmetry(plan):
            proven += 1
            assert prove_by_symmetry(plan) == check(plan)
    assert proven >= 3


@pytest.mark.parametrize("name", ["all_gather/bruck", "reduce_scatter/circulant", "all_gather/circulant"])
def test_equal_to_the_full_proof_at_1024_ranks(name):
    plan = next(algorithm for algorithm in SYMMETRIC if algorithm.full_name == name).plan(1024)
    assert prove_by_symmetry(plan) == check(plan, (7,))


FAULTS = {
    "one rank sends elsewhere": {"dest": lambda move: np.where(np.arange(8) == 3, (move.dest + 1) % 8, move.dest)},
    "another chunk": {"send": lambda move: move.send.shifted(1), "recv": lambda move: move.recv.shifted(1)},
    "another operation": {"op": lambda move: Op.COPY if move.op != Op.COPY else Op.OWN_FIRST},
    "a chunk too few": {"recv": lambda move: replace(move.recv, count=move.recv.count - 1)},
    "one rank reduces": {"op": lambda move: np.where(np.arange(8) == 5, Op.INCOMING_FIRST, move.op)},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["all_reduce/ring", "all_gather/bruck", "reduce_scatter/circulant"])
def test_faults_are_refused_as_by_the_full_proof(fault, name):
    plan = next(algorithm for algorithm in SYMMETRIC if algorithm.full_name == name).plan(8)
    wrong = change_move(plan, 1, **FAULTS[fault])
    with pytest.raises(PlanError):
        prove_by_symmetry(wrong)


def test_a_million_ranks():
    algorithm = next(algorithm for algorithm in SYMMETRIC if algorithm.full_name == "all_gather/bruck")
    assert prove_algorithm(algorithm, 2**16).cost.steps == 16
