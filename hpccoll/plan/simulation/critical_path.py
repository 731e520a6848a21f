"""The critical path of a simulation: the chain of waits for messages that leads to the rank that finishes last.

Shapes: H waits along the path, P simulated ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.simulation.chunk_bytes import Floats
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import IntArray

MoveNumbers: TypeAlias = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class TracedRound:
    """A simulated round: when ranks entered it, and the number of the move whose message each waited for (0: none).

    `messages` holds, per move, the sources and the bytes sent; all arrays have shape (P,).
    """

    round: int
    messages: list[tuple[IntArray, Floats]]
    entered: Floats
    waited_for: MoveNumbers


@dataclass(frozen=True, slots=True)
class MessageWait:
    """A wait of `rank` in `round` for the message of `source`, which entered that round at `at_s`."""

    round: int
    rank: int
    source: int
    nbytes: int
    far: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The waits that delayed `rank`, the last rank to finish, in the order of time.

    Arrays of shape (H,): the round, the waiting rank, the sender, the bytes, whether the message crossed nodes (`far`),
    and when the sender entered that round.
    """

    rank: int
    rounds: IntArray
    ranks: IntArray
    sources: IntArray
    nbytes: IntArray
    far: NDArray[np.bool_]
    entered_s: Floats

    def __len__(self) -> int:
        return len(self.rounds)

    def wait(self, number: int) -> MessageWait:
        """Return wait `number`, counted from 0; -1 is the last."""
        return MessageWait(
            round=int(self.rounds[number]),
            rank=int(self.ranks[number]),
            source=int(self.sources[number]),
            nbytes=int(self.nbytes[number]),
            far=bool(self.far[number]),
            at_s=float(self.entered_s[number]),
        )


def find_critical_path(segments: Iterable[list[TracedRound]], clocks: Floats, n: int, machine: Machine) -> CriticalPath:
    """Return the path to the rank that finishes last.

    Args:
        segments: the traced rounds in segments, the last segment first, each in the order of rounds.
        clocks: when the simulated ranks finish, shape (P,).
        n: number of ranks that they represent; the path names these.
        machine: states which ranks share a node.
    """
    size = len(clocks)
    last = rank = int(np.argmax(clocks)) if size else 0
    waits: list[tuple[int, int, int, int, float]] = []
    for segment in segments:
        for traced in reversed(segment):
            index = rank % size
            number = traced.waited_for[index]
            if not number:
                continue
            sources, nbytes = traced.messages[number - 1]
            source = (int(sources[index]) + rank - index) % n
            sender = source % size
            waits.append((traced.round, rank, source, int(nbytes[sender]), float(traced.entered[sender])))
            rank = source
    waits.reverse()
    rounds, ranks, senders, sent = (np.array([wait[column] for wait in waits], np.int64) for column in range(4))
    q = machine.ranks_per_node
    entered = np.array([wait[4] for wait in waits], np.float64)
    return CriticalPath(last, rounds, ranks, senders, sent, ranks // q != senders // q, entered)
