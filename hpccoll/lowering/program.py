"""The instructions of one rank, in order: receives, sends, waits, reduces, copies and node fences.

A program (a rank's instructions) contains offsets, not addresses, so it runs on all buffers of the same size. A reduce
or copy is a tuple of the ranges that it reads, and last the range that it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from hpccoll.plan import Plan

OWN = -1  # the `owner` of a range in this rank's memory


class MemoryKind(IntEnum):
    """The kind of memory that a `MemoryRange` is in."""

    SOURCE = 0  # the user's input; never written
    RESULT = 1  # the user's output
    WORK = 2  # scratch: chunks that this rank passes on but that are not in its result
    LANDING = 3  # scratch: messages before they are reduced, and packed messages
    SLOT = 4  # shared memory of the node: copies of the chunks that other ranks access


USER_MEMORY: Final = (MemoryKind.SOURCE, MemoryKind.RESULT)


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Elements `start` to `stop` (exclusive) of one memory; `owner` is a rank of this node, or OWN for this rank."""

    memory: MemoryKind
    start: int
    stop: int
    owner: int = OWN

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def overlaps(self, other: MemoryRange) -> bool:
        """Whether the two ranges share elements."""
        same = self.memory is other.memory and self.owner == other.owner
        return same and self.start < other.stop and other.start < self.stop

    def part(self, start: int, stop: int) -> MemoryRange:
        """Return elements `start` to `stop` (exclusive) of this range, counted from its beginning."""
        return MemoryRange(self.memory, self.start + start, self.start + stop, self.owner)


@dataclass(frozen=True, slots=True)
class Receive:
    """An instruction to start receiving from rank `peer` into the memory range `place`."""

    peer: int
    place: MemoryRange


@dataclass(frozen=True, slots=True)
class Send:
    """An instruction to start sending the memory range `place` to rank `peer`."""

    peer: int
    place: MemoryRange


@dataclass(frozen=True, slots=True)
class Wait:
    """An instruction to wait until the receive or send that instruction number `start` began is complete."""

    start: int


class Reduce(NamedTuple):
    """An instruction to compute out = left op right, element by element."""

    left: MemoryRange
    right: MemoryRange
    out: MemoryRange


class Copy(NamedTuple):
    """An instruction to copy `source` to `out`."""

    source: MemoryRange
    out: MemoryRange


@dataclass(frozen=True, slots=True)
class NodeFence:
    """An instruction to wait until all ranks of the node have reached this fence; reads and writes no memory."""


LocalInstruction: TypeAlias = Reduce | Copy | NodeFence
Instruction: TypeAlias = Receive | Send | Wait | LocalInstruction


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's instructions for a plan, in order, and how many elements they need of each scratch memory."""

    instructions: tuple[Instruction, ...]
    work: int
    landing: int
    plan: Plan
    slot: int = 0
    accessed: frozenset[MemoryKind] = frozenset()  # the user's buffers that other ranks of the node access
    round_starts: tuple[int, ...] = ()  # number of the first instruction of each round of the plan
    is_loaded_once: bool = False  # whether each chunk of a rank is loaded by at most one other rank, and only once

    @property
    def uses_slots(self) -> bool:
        """Whether an instruction accesses a slot (SLOT, shared memory of the node)."""
        local = (step for step in self.instructions if isinstance(step, Reduce | Copy))
        return any(part.memory is MemoryKind.SLOT for step in local for part in step)
