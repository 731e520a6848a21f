"""Staged calls in tiles and in segments through the slots, or in the entries, against replay: all ranks at once."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.arrays import FlatArray, Reduction, as_buffer
from hpccoll.errors import UsageError
from hpccoll.lowering import Program, lower_plan
from hpccoll.plan import Plan
from hpccoll.runtime import native_plan
from hpccoll.runtime.collective_call import CollectiveCall, is_in_place
from hpccoll.runtime.node_memory.node_barrier import WORDS
from hpccoll.runtime.plan_executable import PlanContext
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.shared_memory import staged
from hpccoll.runtime.shared_memory.executable import SharedMemoryExecutable
from tests.depth import mark_full
from tests.unit.lowering.test_node_programs import (
    CASES,
    SHARED,
    compute_expected,
    get_name,
    make_inputs,
    make_plan,
)
from tests.unit.runtime.simulated import JUNK
from tests.unit.runtime.simulated_node import ITEMSIZE, Array, make_barrier, make_buffers, mix

MIXED = Reduction.from_function(mix, commutative=False)


class JunkScratch(dict[tuple[str, int, str], FlatArray]):
    """Scratch that is full of junk at every call."""

    def get(self, *_: object) -> Any:
        return np.full(100_000, JUNK)


class SimulatedContext(PlanContext):
    """The state of a rank on a simulated node, whose calls all run one plan."""

    def __init__(self, node: Any, plan: Plan) -> None:
        ranks: Any = SimpleNamespace(rank=node.rank, size=plan.ranks)
        super().__init__(ranks, (node.ranks,), node, Progress(), CallRecorder(), lambda: False)
        self._plan, self.scratch, self.shared_scratch = plan, JunkScratch(), JunkScratch()

    def plan(self, call: CollectiveCall) -> Plan:  # noqa: ARG002
        return self._plan

    def lower(self, call: CollectiveCall, sizes: tuple[int, ...] | None = None, *, staged: bool = False) -> Program:
        elements = None if sizes is None else np.array(sizes, np.int64)
        return lower_plan(self._plan, self.rank, call.count, ITEMSIZE, call.in_place, staged=staged, sizes=elements)


def nodes_of(ranks: int, slot_bytes: int) -> list[Any]:
    """Return the memory of a node as each rank has it; the words and slots of all ranks are ordinary memory."""
    slots = [[np.full(slot_bytes, 0xA5, np.uint8) for _ in range(ranks)] for _ in (0, 1)]
    lines, progress = np.zeros((ranks, WORDS), np.uint64), Progress()
    return [
        SimpleNamespace(
            rank=rank,
            ranks=tuple(range(ranks)),
            others=[other for other in range(ranks) if other != rank],
            symmetric=SimpleNamespace(locate=lambda _: 0, find=lambda *_: None, free_with=lambda *_: None),
            readable=None,
            slots=[dict(enumerate(memory)) for memory in slots],
            slot_bytes=slot_bytes,
            barrier=make_barrier(lines, rank, True, progress),
            barrier_lines=lines,
            runs=deque(),
            raise_mismatch=pytest.fail,
        )
        for rank in range(ranks)
    ]


def make_executable(
    node: Any, plan: Plan, count: int, in_place: bool, reduction: Reduction = MIXED
) -> tuple[SharedMemoryExecutable, Array, Array]:
    """Return a collective of a rank with its input and output."""
    sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
    source, result = make_buffers(plan, node.rank, sizes, in_place)
    given, wanted_by_user = (as_buffer(flat, "x", True) for flat in (source, result))
    call = CollectiveCall(plan.operation, None, plan.root, reduction, given, wanted_by_user, count)
    call = replace(call, in_place=is_in_place(call, node.rank))
    return SharedMemoryExecutable(SimulatedContext(node, plan), call), source, result


def run_rank(
    node: Any, plan: Plan, count: int, inputs: Array, in_place: bool, calls: int, outputs: list[Array]
) -> Iterator[None]:
    """Run a collective several times in steps; yield where another rank may take over."""
    executable, source, result = make_executable(node, plan, count, in_place)
    for _ in range(calls):
        result[:] = JUNK
        source[:] = inputs
        run = executable.start()
        while not run.advance():
            yield
        run.raise_error()
        outputs.append(result.copy())
        source[:] = result[:] = JUNK


def take_turns(ranks: list[Iterator[None]], seed: int) -> None:
    """Advance the ranks in random order until all have ended."""
    rng, running = random.Random(seed), list(ranks)
    for _ in range(100_000):
        rank = rng.choice(running)
        for _ in range(rng.randrange(1, 9)):
            try:
                next(rank)
            except StopIteration:
                running.remove(rank)
                break
        if not running:
            return
    pytest.fail("the ranks wait for each other for ever")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SHARED, ids=get_name)
@pytest.mark.parametrize("tile", [3, 1000, mark_full(1)])
def test_what_runs_in_segments_and_tiles_ends_as_in_replay(algorithm, tile, monkeypatch):
    monkeypatch.setattr(native_plan, "TILE_BYTES", tile * ITEMSIZE)

    @settings(max_examples=6)
    @given(room=st.integers(16, 48), **CASES)
    def check_them(room, n, count, root, in_place, seed):
        plan = make_plan(algorithm, n, root)
        inputs, calls = make_inputs(plan, count, seed), 3
        nodes = nodes_of(n, room * ITEMSIZE)  # up to 12 chunks; the rest is for elements
        outputs: list[list[Array]] = [[] for _ in range(n)]
        ranks = [run_rank(nodes[rank], plan, count, inputs[rank], in_place, calls, outputs[rank]) for rank in range(n)]
        take_turns(ranks, seed)
        for rank, values in enumerate(compute_expected(plan, count, inputs)):
            assert [each.tolist() for each in outputs[rank]] == [values] * calls, f"rank {rank}"

    check_them()


def test_a_plan_with_more_chunks_than_a_slot_has_elements_is_refused():
    sizes = np.full(100, 2)
    plan: Any = SimpleNamespace(name="own", operation=SimpleNamespace(chunk_sizes=lambda *_: sizes), ranks=4)
    plan.column = lambda _: SimpleNamespace(chunks=100)
    call: Any = SimpleNamespace(count=200, dtype=SimpleNamespace(itemsize=8))
    nodes: list[Any] = [SimpleNamespace(slot_bytes=8 * elements) for elements in (100, 150, 200)]
    for node in nodes[:2]:
        with pytest.raises(UsageError, match=rf"own has 100 chunks, but the {node.slot_bytes // 8} elements"):
            staged.find_segments(node, plan, call)
    assert len(staged.find_segments(nodes[2], plan, call)[0]) == 1


def test_no_run_begins_after_an_exception_inside_of_an_earlier_run():
    is_interrupted = False

    def combine(left: Array, right: Array) -> Array:
        if is_interrupted:
            raise KeyboardInterrupt
        return mix(left, right)

    (algorithm,) = (each for each in SHARED if each.full_name == "all_reduce/shared_two_shot")
    nodes, plan = nodes_of(2, 256), algorithm.plan(2, 0, 1)
    runs, reduction = [], Reduction.from_function(combine, commutative=False)
    for node in nodes:
        node.runs = deque()
        executable = make_executable(node, plan, 8, True, reduction)[0]
        runs.append([executable.start() for _ in range(2)])
    for first, _ in runs:
        assert not first.advance(), first.error
    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        runs[0][0].advance()
    fences = nodes[0].barrier.count
    assert not runs[0][1].advance()
    assert nodes[0].barrier.count == fences  # the other rank would take the entry of the second run for this fence
