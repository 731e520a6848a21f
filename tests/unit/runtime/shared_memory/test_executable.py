"""What is bound to memory, in tiles and in blocks through the slots, against replay: all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.plan import Plan
from hpccoll.runtime.arrays import (
    ArrayModule,
    BoundCall,
    DType,
    FlatArray,
    NumPyModule,
    Reduction,
    ScratchPool,
    as_buffer,
)
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.lowering import Program, lower_plan
from hpccoll.runtime.plan_executable import Context
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.shared_memory import tiling
from hpccoll.runtime.shared_memory.executable import SharedMemoryExecutable
from hpccoll.selection import Selection
from tests.depth import mark_full
from tests.unit.runtime.lowering.test_node_programs import CASES, SHARED, brought, by_name, drawn, wanted
from tests.unit.runtime.simulated import JUNK
from tests.unit.runtime.simulated_node import ITEMSIZE, Array, mixed, take_turns, users


class Mixing(NumPyModule):
    """NumPy with a reduction whose order shows."""

    def bind_reduce(self, function: Any, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:  # noqa: ARG002 - there is one
        return lambda: np.copyto(out, mixed(left, right))


class JunkScratch(ScratchPool):
    """Scratch that is full of junk at every call."""

    def take(self, module: ArrayModule, dtype: DType, count: int) -> FlatArray:  # noqa: ARG002
        return np.full(count, JUNK)


def fence() -> None:
    """Stands for every fence; the scheduler recognises it."""


def node_of(rank: int, ranks: int, slots: list[list[Array]]) -> Any:
    """Return what a staged run asks of a node's memory, without shared memory."""
    return SimpleNamespace(
        rank=rank,
        others=[other for other in range(ranks) if other != rank],
        symmetric=SimpleNamespace(locate=lambda _: 0, free_with=lambda *_: None),
        remote=None,
        slots=[SimpleNamespace(memory=dict(enumerate(memory))) for memory in slots],
        slot_bytes=slots[0][0].nbytes,
        barrier=SimpleNamespace(fence=fence),
        runs=(),
    )


def bound_rank(
    node: Any, plan: Plan, count: int, inputs: Array, in_place: bool, calls: int, outputs: list[Array]
) -> Iterator[bool]:
    """Bind a collective to slots and run it several times, as an executable does."""
    sizes = plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
    source, result = users(plan, node.rank, sizes, in_place)
    brought, got = (replace(as_buffer(flat, "x", True), module=Mixing()) for flat in (source, result))
    call = CollectiveCall(plan.operation, None, plan.root, Reduction("sum"), brought, got, count)

    def lowered(*arguments: Any) -> Program:
        *_, sharing, _, staged, sizes = arguments
        elements = None if sizes is None else np.array(sizes, np.int64)
        return lower_plan(plan, node.rank, count, ITEMSIZE, sharing, staged=staged, sizes=elements)

    ranks: Any = SimpleNamespace(rank=node.rank, size=plan.ranks)
    context = Context(ranks, node, Progress(), CallRecorder(), JunkScratch(), lowered, lambda: False)
    executable, slot = SharedMemoryExecutable(context, call, Selection(None, 1, "")), 0
    for _ in range(calls):
        result[:] = JUNK
        source[:] = inputs
        for step in executable._before:
            step()
        before_entry, after_entry, slot = executable._bind_staged(slot)
        for step in (*before_entry, fence, *after_entry):
            if step is not fence:
                step()
            yield step is fence
        outputs.append(result.copy())
        source[:] = result[:] = JUNK


@pytest.mark.parametrize("algorithm", SHARED, ids=by_name)
@pytest.mark.parametrize("tile", [3, 1000, mark_full(1)])
def test_what_is_bound_in_blocks_and_tiles_ends_as_in_replay(algorithm, tile, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_BYTES", tile * ITEMSIZE)

    @settings(max_examples=6)
    @given(room=st.integers(16, 48), **CASES)
    def check_them(room, n, count, root, in_place, seed):
        plan = drawn(algorithm, n, root)
        inputs, calls = brought(plan, count, seed), 3
        # Up to 12 chunks; the rest is for elements.
        slots = [[np.full(room * ITEMSIZE, 0xA5, np.uint8) for _ in range(n)] for _ in (0, 1)]
        outputs: list[list[Array]] = [[] for _ in range(n)]
        nodes = [node_of(rank, n, slots) for rank in range(n)]
        ranks = [
            bound_rank(nodes[rank], plan, count, inputs[rank], in_place, calls, outputs[rank]) for rank in range(n)
        ]
        take_turns(ranks, seed)
        for rank, values in enumerate(wanted(plan, count, inputs)):
            assert [each.tolist() for each in outputs[rank]] == [values] * calls, f"rank {rank}"

    check_them()
