"""What one rank does, in order: a plan's column lowered to starts, waits, joins and copies on four memories.

A program knows offsets, not addresses: it is made once for a shape and runs on any buffers of that shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from hpccoll.plan.plan import Plan


class Memory(IntEnum):
    """Where an element lives."""

    SOURCE = 0  # the user's input, only read
    RESULT = 1  # the user's output
    WORK = 2  # chunks that this rank passes on but does not want
    LANDING = 3  # messages on their way into a reduction, or packed together


@dataclass(frozen=True, slots=True)
class Place:
    """Elements start to stop (exclusive) of one memory."""

    memory: Memory
    start: int
    stop: int

    @property
    def count(self) -> int:
        """Elements."""
        return self.stop - self.start

    def overlaps(self, other: Place) -> bool:
        """Whether the two share elements."""
        return self.memory is other.memory and self.start < other.stop and other.start < self.stop

    def part(self, start: int, stop: int) -> Place:
        """Elements start to stop of this place."""
        return Place(self.memory, self.start + start, self.start + stop)


@dataclass(frozen=True, slots=True)
class Receive:
    """Start receiving from `peer` into `place`."""

    peer: int
    place: Place


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending `place` to `peer`."""

    peer: int
    place: Place


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the receive or send that instruction `start` began is complete."""

    start: int


@dataclass(frozen=True, slots=True)
class Join:
    """out = left (+) right."""

    left: Place
    right: Place
    out: Place


@dataclass(frozen=True, slots=True)
class Copy:
    """out = source."""

    source: Place
    out: Place


Instruction: TypeAlias = Receive | Send | Wait | Join | Copy


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions, how many elements of scratch they need, and the plan that they carry out for one rank."""

    instructions: tuple[Instruction, ...]
    work: int
    landing: int
    plan: Plan

    @property
    def messages(self) -> int:
        """Messages sent and received."""
        return sum(isinstance(step, Send | Receive) for step in self.instructions)
