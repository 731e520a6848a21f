"""Loads, stores and fences have the results of replay: all ranks at once, at any timing, in place and in segments."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithms
from hpccoll.errors import PlanError
from hpccoll.plan import (
    NO_PEER,
    Fence,
    IntArray,
    Load,
    Op,
    Operation,
    Picks,
    Plan,
    Region,
    Rounds,
    Step,
    Store,
    check,
    replay,
)
from hpccoll.runtime.lowering import OWN, MemoryKind, NodeFence, lower_plan
from tests.unit.runtime.simulated import JUNK
from tests.unit.runtime.simulated_node import ITEMSIZE, Array, leg, mixed, simulate, users

SHARED = [
    known for known in list_algorithms() if known.uses_shared_memory and not known.is_two_level
]  # on one node the mixed are as these
MESSAGES = [known for known in list_algorithms() if not known.uses_shared_memory]
CASES = {
    "n": st.integers(1, 6),
    "count": st.one_of(st.integers(0, 12), st.sampled_from([37, 64])),
    "root": st.integers(0, 5),
    "in_place": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


def get_name(algorithm: Algorithm) -> str:
    """Return the full name of an algorithm."""
    return algorithm.full_name


def make_plan(algorithm: Algorithm, n: int, root: int) -> Plan:
    """Return a plan; the drawn root is reduced modulo n."""
    return algorithm.plan(n, root % n if algorithm.operation.has_root else 0)


def brought(plan: Plan, count: int, seed: int) -> list[Array]:
    """Return the random inputs of all ranks."""
    rng, chunks = np.random.default_rng(seed), plan.column(0).chunks
    sizes = plan.operation.chunk_sizes(count, plan.ranks, chunks)
    lengths = [len(users(plan, rank, sizes, in_place=False)[0]) for rank in range(plan.ranks)]
    return [rng.integers(-(2**62), 2**62, length) for length in lengths]


def compute_expected(plan: Plan, count: int, inputs: list[Array]) -> list[list[int]]:
    """Return the results of replay."""
    given = [values if len(values) else None for values in inputs]
    return [each.tolist() for each in replay(plan, count, given, mixed if plan.operation.reduces else None)]


def hold(plan: Plan, count: int, in_place: bool, half: int | None, seed: int) -> None:
    """Run one collective and compare it with replay."""
    inputs = brought(plan, count, seed)
    whole = leg(plan, count, inputs, in_place, half)
    simulate([whole], mixed, seed)
    assert [each.tolist() for each in whole.outputs] == compute_expected(plan, count, inputs)


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@settings(max_examples=8)
@given(**CASES)
def test_buffers_touched_where_they_are_end_as_in_replay(algorithm, n, count, root, in_place, seed):
    hold(make_plan(algorithm, n, root), count, in_place, None, seed)


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@settings(max_examples=8)
@given(**CASES)
def test_buffers_that_go_through_the_arena_end_as_in_replay(algorithm, n, count, root, in_place, seed):
    hold(make_plan(algorithm, n, root), count, in_place, 0, seed)


def elements(mask: Array, sizes: Array, low: Array, high: Array) -> Array:
    """Where elements low to high of the chunks of a mask lie in memory that holds these chunks whole."""
    starts = np.cumsum(np.where(mask, sizes, 0)) - sizes
    pieces = [np.arange(starts[c] + low[c], starts[c] + high[c]) for c in np.nonzero(mask)[0]]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@settings(max_examples=8)
@given(parts=st.integers(1, 5), first=st.integers(0, 1), **CASES)
def test_parts_of_chunks_on_the_halves_in_turn_end_as_in_replay(
    algorithm, parts, first, n, count, root, in_place, seed
):
    plan = make_plan(algorithm, n, root)
    chunks = plan.column(0).chunks
    sizes, inputs = plan.operation.chunk_sizes(count, n, chunks), brought(plan, count, seed)
    of = np.arange(n), n, chunks, plan.root
    held, takes = plan.operation.input_mask(*of), plan.operation.output_mask(*of)
    edges = [sizes * part // parts for part in range(parts + 1)]
    legs = []
    for part, (low, high) in enumerate(pairwise(edges)):
        bring = [inputs[rank][elements(held[rank], sizes, low, high)] for rank in range(n)]
        legs.append(leg(plan, count, bring, in_place, (first + part) % 2, high - low))
    simulate(legs, mixed, seed)
    for rank, values in enumerate(compute_expected(plan, count, inputs)):
        found = np.full(len(values), JUNK)
        for each, (low, high) in zip(legs, pairwise(edges), strict=True):
            found[elements(takes[rank], sizes, low, high)] = each.outputs[rank]
        assert found.tolist() == values, f"rank {rank}"


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_collectives_back_to_back_do_not_disturb_each_other(seed):
    """Through the halves in turn, with some in between that touch buffers where they are."""
    rng = random.Random(seed)
    n, half, legs, expected = rng.randrange(2, 6), rng.randrange(2), [], []
    for turn in range(rng.randrange(2, 7)):
        plan, count = make_plan(rng.choice(SHARED), n, rng.randrange(n)), rng.choice((0, 1, 5, 19))
        inputs, direct = brought(plan, count, seed % 2**31 + turn), rng.random() < 0.2
        legs.append(leg(plan, count, inputs, rng.random() < 0.5, None if direct else half))
        expected.append(compute_expected(plan, count, inputs))
        half = half if direct else 1 - half
    simulate(legs, mixed, seed)
    for each, values in zip(legs, expected, strict=True):
        assert [found.tolist() for found in each.outputs] == values, each.plan.name


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
def test_nobody_is_touched_after_the_last_meeting_and_only_the_arena_does_without_one(algorithm):
    for n in (2, 3, 5):
        plan = make_plan(algorithm, n, 1)
        for rank in range(n):
            direct = lower_plan(plan, rank, 8, ITEMSIZE, in_place=False).instructions
            through = lower_plan(plan, rank, 8, ITEMSIZE, in_place=False, staged=True).instructions
            meetings = [
                [at for at, step in enumerate(steps) if isinstance(step, NodeFence)] for steps in (direct, through)
            ]
            after = direct[meetings[0][-1] + 1 :]
            assert all(place.owner == OWN for step in after for place in places_of(step))
            assert 1 <= len(meetings[1]) <= len(meetings[0])


def as_shared(algorithm: Algorithm, n: int, root: int, *, push: bool) -> Plan | None:
    """Return a plan of messages as loads (or stores, if nothing is reduced) between fences; None if it is refused."""
    plan = make_plan(algorithm, n, root)
    script = plan.rounds()

    def make(rank: IntArray) -> Rounds:
        everyone = Fence(np.zeros_like(rank))
        return Rounds(
            2 * script.count + 1,
            script.chunks,
            lambda t: [everyone] if t % 2 == 0 else _transfers(script.at(t // 2), rank, n, push),
        )

    made = Plan(plan.operation, f"{plan.algorithm}-shared", n, plan.root, make)
    try:
        check(made)
    except PlanError:
        return None
    return made


def _transfers(moves: Any, rank: IntArray, n: int, push: bool) -> list[Step]:
    steps: list[Step] = []
    for move in moves:
        op = np.broadcast_to(np.asarray(move.op), (n,))
        if push and (op == Op.COPY).all() and not (move.dest == np.arange(n)).any():
            steps.append(Store(move.dest[rank], _of(move.send, rank, n), _of(move.recv, move.dest[rank], n)))
        else:
            steps.append(
                Load(move.source[rank], _of(move.send, move.source[rank], n), _of(move.recv, rank, n), op[rank])
            )
    return steps


def _of(region: Region, ranks: IntArray, n: int) -> Region:
    ids = np.where(ranks[:, None] == NO_PEER, NO_PEER, region.ids(n)[ranks])
    return Picks(ids.shape[1], lambda: ids)


@pytest.mark.parametrize("push", [False, True])
def test_plans_with_many_fences_end_as_in_replay(push):
    """A load of one round reads the result of the round before.

    With access in place, no rank may pass on chunks outside of its result, because they are in no shared memory.
    """
    tried = {True: 0, False: 0}
    for algorithm in MESSAGES:
        for n in (3, 4):
            plan = as_shared(algorithm, n, n - 1, push=push)
            if plan is None or plan.operation is Operation.BARRIER:
                continue
            programs = [lower_plan(plan, rank, 7, ITEMSIZE, in_place=False) for rank in range(n)]
            direct = not any(program.slot for program in programs)
            for seed in range(2):
                for half in (None, 1) if direct else (1,):
                    hold(plan, 7, seed % 2 == 0, half, seed)
            tried[direct] += 1
    assert tried[True] > 20
    assert tried[False] > 5


@pytest.mark.parametrize("half", [None, 0])
@pytest.mark.parametrize("n", [4, 8])
def test_what_lands_where_others_still_load_is_there_after_the_next_fence(n, half):
    plan = as_shared(get_algorithm(Operation.ALL_REDUCE, "recursive_doubling"), n, 0, push=False)
    assert plan is not None
    for seed in range(12):
        hold(plan, 7, True, half, seed)


def touched_by_others(plan: Plan, count: int) -> list[set[MemoryKind]]:
    """Return which memories of each rank others touch where they are."""
    seen: list[set[MemoryKind]] = [set() for _ in range(plan.ranks)]
    for rank in range(plan.ranks):
        for step in lower_plan(plan, rank, count, ITEMSIZE, in_place=False).instructions:
            for place in places_of(step):
                if place.owner != OWN:
                    seen[place.owner].add(place.memory)
    return seen


@pytest.mark.parametrize("n", [2, 3, 4])
def test_what_others_touch_is_what_the_program_says(n):
    """A buffer that a rank calls untouched may be ordinary memory, which no other rank can reach."""
    plans = [make_plan(algorithm, n, n - 1) for algorithm in SHARED]
    for algorithm in MESSAGES:
        made = as_shared(algorithm, n, n - 1, push=False)
        plans += [made] if made is not None else []
    for plan in plans:
        seen = touched_by_others(plan, 2 * n + 1)
        for rank in range(n):
            program = lower_plan(plan, rank, 2 * n + 1, ITEMSIZE, in_place=False)
            assert seen[rank] - {MemoryKind.SLOT} == program.accessed, f"{plan.name}, rank {rank}"


def test_no_registered_plan_needs_shared_memory_of_its_own_where_buffers_are_touched_where_they_are():
    for algorithm in SHARED:
        for n in (2, 3, 5):
            assert not any(MemoryKind.SLOT in seen for seen in touched_by_others(make_plan(algorithm, n, 1), 11))


def places_of(step: Any) -> tuple[Any, ...]:
    """The places that an instruction reads or writes."""
    return tuple(getattr(step, name) for name in ("left", "right", "source", "out") if hasattr(step, name))


def test_a_barrier_through_slots_has_all_its_fences():
    """The last one too, which other plans leave out: a barrier's ranks wait there for those of other nodes."""
    plan = get_algorithm(Operation.BARRIER, "hierarchical_dissemination").plan(4, nodes=(2, 2))
    for rank in range(4):
        programs = [lower_plan(plan, rank, 0, 1, False, staged=staged).instructions for staged in (False, True)]
        direct, through = ([isinstance(step, NodeFence) for step in steps].count(True) for steps in programs)
        assert through == direct
