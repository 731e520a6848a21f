"""The critical path of a simulation: the chain of waits for messages that leads to the rank that finishes last.

In array shapes, P is the number of simulated ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import Floats, IntArray

MoveNumbers: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TracedRound:
    """The times and messages of one simulated round; all arrays have one entry per simulated rank.

    `messages` has, for each step, the rank from which each rank receives and the bytes that each rank sends. Ranks
    enter the round at `entered`, in seconds. `waited_for` has the number (from 1) of the step whose message delayed a
    rank, or 0.
    """

    round: int
    messages: list[tuple[IntArray, Floats]]
    entered: Floats
    waited_for: MoveNumbers


@dataclass(frozen=True, slots=True)
class MessageWait:
    """A wait on the critical path: `rank`, which entered `round` at `entered_s`, waited for a message from `source`.

    `far` states that `source` is on another node.
    """

    round: int
    rank: int
    source: int
    nbytes: int
    far: bool
    entered_s: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain of waits, in chronological order, that delayed `rank`, the last rank to finish."""

    rank: int
    waits: tuple[MessageWait, ...]


def find_critical_path(segments: Iterable[list[TracedRound]], clocks: Floats, n: int, machine: Machine) -> CriticalPath:
    """Return the critical path: the chain of waits for messages that leads to the rank that finishes last.

    Args:
        segments: the rounds of the simulation in lists, the latest list first; each list is in chronological order.
        clocks: the time at which each of the P simulated ranks finishes, in seconds.
        n: the number of ranks of the plan; the path may lead over any of them, not only the simulated ones.
    """
    size, q = len(clocks), machine.ranks_per_node
    last = rank = int(np.argmax(clocks)) if size else 0
    waits: list[MessageWait] = []
    for segment in segments:
        for traced in reversed(segment):
            index = rank % size
            number = traced.waited_for[index]
            if not number:
                continue
            sources, nbytes = traced.messages[number - 1]
            source = (int(sources[index]) + rank - index) % n
            sender, far = source % size, rank // q != source // q
            entered_s = float(traced.entered[sender])
            waits.append(MessageWait(traced.round, rank, source, int(nbytes[sender]), far, entered_s))
            rank = source
    return CriticalPath(last, tuple(reversed(waits)))
