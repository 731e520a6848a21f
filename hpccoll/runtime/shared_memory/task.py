"""A collective by loads and stores, as one rank sees it: what is bound to memory, and what all must agree on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpccoll.plan import IntArray, Plan
from hpccoll.runtime.arrays import ArrayModule, BoundCall, Buffer, DType, FlatArray
from hpccoll.runtime.lowering import LocalInstruction, Program


@dataclass(frozen=True, slots=True)
class Task:
    """One collective of this rank: its buffers, what it does to them, and what all ranks must agree on.

    `lowered(None)` gives the program that touches buffers where they are, `lowered(sizes)` the one through the arena
    for so many elements of each chunk. `before` and `after` are run around it; `facts` names operation and arguments,
    for the entry and for messages.
    """

    plan: Plan
    source: Buffer | None
    result: Buffer | None
    count: int
    dtype: DType
    module: ArrayModule
    function: str
    lowered: Callable[[tuple[int, ...] | None], Program]
    scratch: Callable[[int], FlatArray]
    before: tuple[BoundCall, ...]
    after: tuple[BoundCall, ...]
    facts: tuple[object, ...]

    def sizes(self) -> IntArray:
        """Return the elements of each chunk, shape (C,)."""
        chunks = self.plan.column(0).chunks
        return self.plan.operation.chunk_sizes(self.count, self.plan.ranks, chunks)


def local(program: Program) -> list[LocalInstruction]:
    """Return the instructions that send no message: all, in a plan of loads and stores."""
    return [step for step in program.instructions if isinstance(step, LocalInstruction)]
