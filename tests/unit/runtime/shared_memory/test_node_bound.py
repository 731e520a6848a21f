"""What is bound to memory, in tiles and in blocks through the arena, against replay: all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.plan import Plan
from hpccoll.runtime.arrays import BoundCall, FlatArray, NumPyModule, as_buffer, get_dtype
from hpccoll.runtime.lowering import lower_plan
from hpccoll.runtime.shared_memory import bind, staged
from hpccoll.runtime.shared_memory.task import Task
from tests.depth import mark_full
from tests.unit.runtime.lowering.test_node_programs import CASES, SHARED, brought, by_name, drawn, wanted
from tests.unit.runtime.simulated import JUNK
from tests.unit.runtime.simulated_node import ITEMSIZE, Array, mixed, shares, take_turns, users


class Mixing(NumPyModule):
    """NumPy with a reduction whose order shows."""

    def bind_reduce(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:  # noqa: ARG002 - there is one
        return lambda: np.copyto(out, mixed(left, right))


@dataclass
class Arenas:
    """What staged steps ask of a node: who is there, the halves of all arenas, and where to wait."""

    rank: int
    ranks: tuple[int, ...]
    halves: list[list[Array]]
    gate: Any

    def arena(self, rank: int, half: int) -> Array:
        return self.halves[half][rank]


def enter() -> None:
    """Stands for the first meeting of a collective."""


def fence() -> None:
    """Stands for every other one."""


def bound_rank(
    node: Arenas, plan: Plan, count: int, inputs: Array, in_place: bool, calls: int, outputs: list[Array]
) -> Iterator[bool]:
    """Bind a collective to memory and run it several times, as an executable does."""
    chunks = plan.column(0).chunks
    sharing = shares(plan, node.rank, chunks, in_place)
    source, result = users(plan, node.rank, plan.operation.chunk_sizes(count, plan.ranks, chunks), in_place)
    dtype, module, half = get_dtype("int64"), Mixing(), 0
    through = partial(lower_plan, plan, node.rank, count, ITEMSIZE, sharing, staged=True)
    task = Task(
        plan, as_buffer(source, "x", True), as_buffer(result, "out", True), count, dtype, module, "mixed",
        lambda sizes: through(sizes=np.array(sizes)), lambda length: np.full(length, JUNK), (), (), (),
    )  # fmt: skip
    for _ in range(calls):
        result[:] = JUNK
        source[:] = inputs
        steps, half = staged.staged_steps(node, task, half, enter)  # type: ignore[arg-type]
        for step in steps:
            if step is not enter and step is not fence:
                step()
            yield step is enter or step is fence
        outputs.append(result.copy())
        source[:] = result[:] = JUNK


@pytest.mark.parametrize("algorithm", SHARED, ids=by_name)
@pytest.mark.parametrize("tile", [3, 1000, mark_full(1)])
def test_what_is_bound_in_blocks_and_tiles_ends_as_in_replay(algorithm, tile, monkeypatch):
    monkeypatch.setattr(bind, "TILE", tile * ITEMSIZE)

    @settings(max_examples=6)
    @given(room=st.integers(16, 48), **CASES)
    def check_them(room, n, count, root, in_place, seed):
        monkeypatch.setattr(staged, "HALF", room * ITEMSIZE)  # of up to 12 chunks; the rest is for elements
        plan = drawn(algorithm, n, root)
        inputs, calls = brought(plan, count, seed), 3
        halves = [[np.full(room * ITEMSIZE, 0xA5, np.uint8) for _ in range(n)] for _ in (0, 1)]
        outputs: list[list[Array]] = [[] for _ in range(n)]
        nodes = [Arenas(rank, tuple(range(n)), halves, SimpleNamespace(fence=fence)) for rank in range(n)]
        ranks = [
            bound_rank(nodes[rank], plan, count, inputs[rank], in_place, calls, outputs[rank]) for rank in range(n)
        ]
        take_turns(ranks, seed)
        for rank, values in enumerate(wanted(plan, count, inputs)):
            assert [each.tolist() for each in outputs[rank]] == [values] * calls, f"rank {rank}"

    check_them()
