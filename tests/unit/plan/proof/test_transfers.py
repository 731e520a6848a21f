"""Rounds as blocks of flat arrays: the chunks of every region, and proofs that do not depend on the size of blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import list_algorithms
from hpccoll.errors import PlanError
from hpccoll.plan import Move, Operation, Picks, Plan, Region, Rounds, Span, check
from hpccoll.plan.proof import checker
from hpccoll.plan.proof.transfers import TransferReader
from tests.depth import keep_every

N, CHUNKS = 4, 24


def region(chance: np.random.Generator) -> Region:
    """Return a span with numbers or arrays, of one chunk or more per unit, or a list of the chunks of a span."""
    unit, mod = int(chance.integers(1, 4)), int(chance.integers(1, 5))
    many = int(chance.integers(0, mod + 1))
    count = chance.integers(0, mod + 1, N) if chance.random() < 0.5 else many
    first = chance.integers(-9, 9, N) if chance.random() < 0.5 else int(chance.integers(-9, 9))
    base = chance.integers(0, 9, N) if chance.random() < 0.5 else int(chance.integers(0, 9))
    span = Span(first, count, mod, unit, base)
    picked = count is many and chance.random() < 0.3
    return Picks(many * unit, lambda: span.ids(N)) if picked else span


def test_blocks_list_the_chunks_that_the_regions_list():
    chance = np.random.default_rng(0)
    ring = np.arange(N)
    moves = [Move(ring, ring, each, each) for each in (region(chance) for _ in range(300))]
    rounds = Rounds(100, CHUNKS, lambda t: moves[3 * t : 3 * t + 3])
    plan = Plan(Operation.ALL_REDUCE, "mine", N, 0, lambda _: rounds)
    for most_rounds in (1, 7, 100):
        blocks = list(TransferReader(plan, ()).read_blocks(most_rounds))
        assert len(blocks) == -(-100 // most_rounds)
        listed = [
            (t, rank * CHUNKS + chunk)
            for t in range(100)
            for move in rounds.at(t)
            for rank, row in enumerate(move.send.ids(N).tolist())
            for chunk in row
            if chunk >= 0
        ]
        found = [each for block in blocks for each in zip(block.round[block.transfer], block.into, strict=True)]
        assert found == listed


@pytest.mark.parametrize("algorithm", keep_every(5, list_algorithms()), ids=lambda each: each.full_name)
def test_a_proof_does_not_depend_on_the_blocks(algorithm, monkeypatch):
    plan = algorithm.plan(7, root=3 if "root" in algorithm.parameters else 0, chunks=2)
    proof = check(plan)
    broken = replace(plan, make=lambda rank: replace(plan.make(rank), count=max(plan.make(rank).count - 1, 0)))
    with pytest.raises(PlanError) as caught:
        check(broken)
    monkeypatch.setattr(checker, "_MOST_ROUNDS", 1)
    monkeypatch.setattr(checker, "_MOST_KEPT", 0)
    assert check(plan) == proof
    with pytest.raises(PlanError) as again:
        check(broken)
    assert str(caught.value) == str(again.value)
