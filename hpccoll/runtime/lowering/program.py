"""What one rank does, in order: a plan's column lowered to starts, waits, joins and copies on four memories.

A program knows offsets, not addresses: it is made once for a shape and runs on any buffers of that shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from hpccoll.plan import Plan

OWN = -1  # the owner of a place of this rank


class MemoryKind(IntEnum):
    """Where an element lives."""

    SOURCE = 0  # the user's input, only read
    RESULT = 1  # the user's output
    WORK = 2  # chunks that this rank passes on but does not want
    LANDING = 3  # messages on their way into a reduction, or packed together
    ARENA = 4  # chunks that other ranks of the node touch, where they cannot touch the user's own memory


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Elements start to stop (exclusive) of one memory, of this rank or of the rank of this node that is `owner`."""

    memory: MemoryKind
    start: int
    stop: int
    owner: int = OWN

    @property
    def count(self) -> int:
        """Elements."""
        return self.stop - self.start

    def overlaps(self, other: MemoryRange) -> bool:
        """Whether the two share elements."""
        same = self.memory is other.memory and self.owner == other.owner
        return same and self.start < other.stop and other.start < self.stop

    def part(self, start: int, stop: int) -> MemoryRange:
        """Elements start to stop of this place."""
        return MemoryRange(self.memory, self.start + start, self.start + stop, self.owner)


@dataclass(frozen=True, slots=True)
class Receive:
    """Start receiving from `peer` into `place`."""

    peer: int
    place: MemoryRange


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending `place` to `peer`."""

    peer: int
    place: MemoryRange


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the receive or send that instruction `start` began is complete."""

    start: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """out = left (+) right."""

    left: MemoryRange
    right: MemoryRange
    out: MemoryRange

    @property
    def ranges(self) -> tuple[MemoryRange, ...]:
        """The memory it reads, then the memory it writes."""
        return self.left, self.right, self.out


@dataclass(frozen=True, slots=True)
class Copy:
    """out = source."""

    source: MemoryRange
    out: MemoryRange

    @property
    def ranges(self) -> tuple[MemoryRange, ...]:
        """The memory it reads, then the memory it writes."""
        return self.source, self.out


@dataclass(frozen=True, slots=True)
class NodeFence:
    """Wait until all ranks of the node have reached this fence."""

    @property
    def ranges(self) -> tuple[MemoryRange, ...]:
        """No memory."""
        return ()


LocalInstruction: TypeAlias = Reduce | Copy | NodeFence
Instruction: TypeAlias = Receive | Send | Wait | LocalInstruction


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions, how many elements of scratch they need, and the plan that they carry out for one rank.

    `arena` is the elements that they use of the node's shared memory; `touched` says which of the user's own memories
    (SOURCE, RESULT) other ranks of the node load from or store into.
    """

    instructions: tuple[Instruction, ...]
    work: int
    landing: int
    plan: Plan
    arena: int = 0
    touched: frozenset[MemoryKind] = frozenset()

    @property
    def uses_arena(self) -> bool:
        """Whether anything lies in the node's shared memory."""
        places = (place for step in self.instructions if isinstance(step, Reduce | Copy) for place in step.ranges)
        return any(place.memory is MemoryKind.ARENA for place in places)

    @property
    def messages(self) -> int:
        """Messages sent and received."""
        return sum(isinstance(step, Send | Receive) for step in self.instructions)
