"""Programs of loads, stores and fences have the results of `replay`, at any timing of the ranks."""

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
from hpccoll.lowering import OWN, MemoryKind, NodeFence, lower_plan
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
from tests.unit.runtime.simulated import JUNK
from tests.unit.runtime.simulated_node import ITEMSIZE, Array, lower_collective, make_buffers, mix, simulate

SHARED = [
    known for known in list_algorithms() if known.uses_shared_memory and not known.is_two_level
]  # on one node, two-level algorithms are the same as these
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


def make_inputs(plan: Plan, count: int, seed: int) -> list[Array]:
    """Return a random int64 input for each rank; `count` is the number of elements of the vector or of one block."""
    rng, chunks = np.random.default_rng(seed), plan.column(0).chunks
    sizes = plan.operation.chunk_sizes(count, plan.ranks, chunks)
    lengths = [len(make_buffers(plan, rank, sizes, in_place=False)[0]) for rank in range(plan.ranks)]
    return [rng.integers(-(2**62), 2**62, length) for length in lengths]


def compute_expected(plan: Plan, count: int, inputs: list[Array]) -> list[list[int]]:
    """Return the output of each rank according to `replay`, as lists."""
    given = [values if len(values) else None for values in inputs]
    return [each.tolist() for each in replay(plan, count, given, mix if plan.operation.reduces else None)]


def check_against_replay(plan: Plan, count: int, in_place: bool, slot: int | None, seed: int) -> None:
    """Run one collective on random inputs, and assert that its outputs equal those of `replay`.

    `slot` is the number of the slot to use; None to access buffers directly.
    """
    inputs = make_inputs(plan, count, seed)
    whole = lower_collective(plan, count, inputs, in_place, slot)
    simulate([whole], mix, seed)
    assert [each.tolist() for each in whole.outputs] == compute_expected(plan, count, inputs)


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@settings(max_examples=8)
@given(**CASES)
def test_direct_access_to_buffers_has_the_results_of_replay(algorithm, n, count, root, in_place, seed):
    check_against_replay(make_plan(algorithm, n, root), count, in_place, None, seed)


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@settings(max_examples=8)
@given(**CASES)
def test_collectives_through_slots_have_the_results_of_replay(algorithm, n, count, root, in_place, seed):
    check_against_replay(make_plan(algorithm, n, root), count, in_place, 0, seed)


def locate_elements(mask: Array, sizes: Array, low: Array, high: Array) -> Array:
    """Return the indices of the elements `low` to `high` - 1 of each chunk in an array that has all of certain chunks.

    Args:
        mask: the chunks that the array consists of, shape (chunks,).
        sizes: the number of elements of each chunk.
        low, high: for each chunk, the range of elements within the chunk.
    """
    starts = np.cumsum(np.where(mask, sizes, 0)) - sizes
    pieces = [np.arange(starts[c] + low[c], starts[c] + high[c]) for c in np.nonzero(mask)[0]]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@settings(max_examples=8)
@given(parts=st.integers(1, 5), first=st.integers(0, 1), **CASES)
def test_collectives_in_parts_through_alternating_slots_have_the_results_of_replay(
    algorithm, parts, first, n, count, root, in_place, seed
):
    plan = make_plan(algorithm, n, root)
    chunks = plan.column(0).chunks
    sizes, inputs = plan.operation.chunk_sizes(count, n, chunks), make_inputs(plan, count, seed)
    of = np.arange(n), n, chunks, plan.root
    held, takes = plan.operation.input_mask(*of), plan.operation.output_mask(*of)
    edges = [sizes * part // parts for part in range(parts + 1)]
    collectives = []
    for part, (low, high) in enumerate(pairwise(edges)):
        bring = [inputs[rank][locate_elements(held[rank], sizes, low, high)] for rank in range(n)]
        collectives.append(lower_collective(plan, count, bring, in_place, (first + part) % 2, high - low))
    simulate(collectives, mix, seed)
    for rank, values in enumerate(compute_expected(plan, count, inputs)):
        found = np.full(len(values), JUNK)
        for each, (low, high) in zip(collectives, pairwise(edges), strict=True):
            found[locate_elements(takes[rank], sizes, low, high)] = each.outputs[rank]
        assert found.tolist() == values, f"rank {rank}"


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_collectives_back_to_back_do_not_disturb_each_other(seed):
    """The collectives use the two slots in turn; about a fifth of them access buffers directly instead."""
    rng = random.Random(seed)
    n, slot, collectives, expected = rng.randrange(2, 6), rng.randrange(2), [], []
    for turn in range(rng.randrange(2, 7)):
        plan, count = make_plan(rng.choice(SHARED), n, rng.randrange(n)), rng.choice((0, 1, 5, 19))
        inputs, direct = make_inputs(plan, count, seed % 2**31 + turn), rng.random() < 0.2
        collectives.append(lower_collective(plan, count, inputs, rng.random() < 0.5, None if direct else slot))
        expected.append(compute_expected(plan, count, inputs))
        slot = slot if direct else 1 - slot
    simulate(collectives, mix, seed)
    for each, values in zip(collectives, expected, strict=True):
        assert [found.tolist() for found in each.outputs] == values, each.plan.name


@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
def test_no_remote_access_follows_the_last_fence_and_slots_need_at_most_as_many_fences(algorithm):
    for n in (2, 3, 5):
        plan = make_plan(algorithm, n, 1)
        for rank in range(n):
            direct = lower_plan(plan, rank, 8, ITEMSIZE, in_place=False).instructions
            through = lower_plan(plan, rank, 8, ITEMSIZE, in_place=False, staged=True).instructions
            meetings = [
                [at for at, step in enumerate(steps) if isinstance(step, NodeFence)] for steps in (direct, through)
            ]
            after = direct[meetings[0][-1] + 1 :]
            assert all(place.owner == OWN for step in after for place in list_ranges(step))
            assert 1 <= len(meetings[1]) <= len(meetings[0])


def convert_to_shared_memory(algorithm: Algorithm, n: int, root: int, *, push: bool) -> Plan | None:
    """Return a message plan converted to shared memory: one fence per round, and a load in place of each message.

    With `push`, messages that are not reduced become stores. The result is None if `check` refuses the converted plan.
    """
    plan = make_plan(algorithm, n, root)
    script = plan.rounds()

    def make(rank: IntArray) -> Rounds:
        everyone = Fence(np.zeros_like(rank))
        return Rounds(
            2 * script.count + 1,
            script.chunks,
            lambda t: [everyone] if t % 2 == 0 else _list_transfers(script.at(t // 2), rank, n, push),
        )

    made = Plan(plan.operation, f"{plan.algorithm}-shared", n, plan.root, make)
    try:
        check(made)
    except PlanError:
        return None
    return made


def _list_transfers(moves: Any, rank: IntArray, n: int, push: bool) -> list[Step]:
    """Return the loads, or with `push` the stores, that replace the messages `moves` of a round."""
    steps: list[Step] = []
    for move in moves:
        op = np.broadcast_to(np.asarray(move.op), (n,))
        if push and (op == Op.COPY).all() and not (move.dest == np.arange(n)).any():
            steps.append(
                Store(move.dest[rank], _select_ranks(move.send, rank, n), _select_ranks(move.recv, move.dest[rank], n))
            )
        else:
            steps.append(
                Load(
                    move.source[rank],
                    _select_ranks(move.send, move.source[rank], n),
                    _select_ranks(move.recv, rank, n),
                    op[rank],
                )
            )
    return steps


def _select_ranks(region: Region, ranks: IntArray, n: int) -> Region:
    """Return the chunks that `region` has for `ranks`; none for NO_PEER."""
    ids = np.where(ranks[:, None] == NO_PEER, NO_PEER, region.ids(n)[ranks])
    return Picks(ids.shape[1], lambda: ids)


@pytest.mark.slow
@pytest.mark.parametrize("push", [False, True])
def test_plans_with_many_fences_have_the_results_of_replay(push):
    """A load of one round reads the result of the round before.

    With access in place, no rank may pass on chunks outside of its result, because they are in no shared memory.
    """
    tried = {True: 0, False: 0}
    for algorithm in MESSAGES:
        for n in (3, 4):
            plan = convert_to_shared_memory(algorithm, n, n - 1, push=push)
            if plan is None or plan.operation is Operation.BARRIER:
                continue
            programs = [lower_plan(plan, rank, 7, ITEMSIZE, in_place=False) for rank in range(n)]
            direct = not any(program.slot for program in programs)
            for seed in range(2):
                for slot in (None, 1) if direct else (1,):
                    check_against_replay(plan, 7, seed % 2 == 0, slot, seed)
            tried[direct] += 1
    assert tried[True] > 20
    assert tried[False] > 5


@pytest.mark.parametrize("slot", [None, 0])
@pytest.mark.parametrize("n", [4, 8])
def test_results_in_memory_that_others_still_load_from_are_visible_after_the_next_fence(n, slot):
    plan = convert_to_shared_memory(get_algorithm(Operation.ALL_REDUCE, "recursive_doubling"), n, 0, push=False)
    assert plan is not None
    for seed in range(12):
        check_against_replay(plan, 7, True, slot, seed)


def find_remote_accesses(plan: Plan, count: int) -> list[set[MemoryKind]]:
    """Return, for each rank, the kinds of its memory that other ranks read or write directly."""
    seen: list[set[MemoryKind]] = [set() for _ in range(plan.ranks)]
    for rank in range(plan.ranks):
        for step in lower_plan(plan, rank, count, ITEMSIZE, in_place=False).instructions:
            for place in list_ranges(step):
                if place.owner != OWN:
                    seen[place.owner].add(place.memory)
    return seen


@pytest.mark.parametrize("n", [2, 3, 4])
def test_programs_state_the_memory_that_other_ranks_access(n):
    """A buffer that is not in `program.accessed` may be ordinary memory, which other ranks cannot access."""
    plans = [make_plan(algorithm, n, n - 1) for algorithm in SHARED]
    for algorithm in MESSAGES:
        made = convert_to_shared_memory(algorithm, n, n - 1, push=False)
        plans += [made] if made is not None else []
    for plan in plans:
        seen = find_remote_accesses(plan, 2 * n + 1)
        for rank in range(n):
            program = lower_plan(plan, rank, 2 * n + 1, ITEMSIZE, in_place=False)
            assert seen[rank] - {MemoryKind.SLOT} == program.accessed, f"{plan.name}, rank {rank}"


def test_no_registered_plan_needs_slots_if_ranks_access_buffers_directly():
    for algorithm in SHARED:
        for n in (2, 3, 5):
            assert not any(MemoryKind.SLOT in seen for seen in find_remote_accesses(make_plan(algorithm, n, 1), 11))


def list_ranges(step: Any) -> tuple[Any, ...]:
    """Return the memory ranges that an instruction reads or writes."""
    return tuple(getattr(step, name) for name in ("left", "right", "source", "out") if hasattr(step, name))


def test_a_barrier_through_slots_has_all_its_fences():
    """Staged programs of other plans omit the last fence; in a barrier, ranks wait there for those of other nodes."""
    plan = get_algorithm(Operation.BARRIER, "hierarchical_dissemination").plan(4, nodes=(2, 2))
    for rank in range(4):
        programs = [lower_plan(plan, rank, 0, 1, False, staged=staged).instructions for staged in (False, True)]
        direct, through = ([isinstance(step, NodeFence) for step in steps].count(True) for steps in programs)
        assert through == direct
