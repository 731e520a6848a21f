"""The critical path of a simulation: which rank waited for whose message in which round, back from the last one done.

Shapes: H waits along the path.
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
    """A round that was run: when ranks entered it, and the number of the move whose message each waited for (0: none).

    Of each move it keeps from whom messages came, and how many bytes were sent; all arrays have shape (P,).
    """

    round: int
    messages: list[tuple[IntArray, Floats]]
    entered: Floats
    came: MoveNumbers


@dataclass(frozen=True, slots=True)
class MessageWait:
    """`rank` could not leave `round` before the message of `source` was there, who entered that round at `at_s`."""

    round: int
    rank: int
    source: int
    nbytes: int
    far: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What the last rank done was held up by, in the order of time: waits for messages, and its own doings between.

    All of it in arrays of shape (H,): the round, who waited, for whom, for how many bytes, whether the message
    crossed nodes, and when the sender entered that round.
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
        """Return the wait of that number, the first one 0, the last one -1."""
        return MessageWait(
            round=int(self.rounds[number]),
            rank=int(self.ranks[number]),
            source=int(self.sources[number]),
            nbytes=int(self.nbytes[number]),
            far=bool(self.far[number]),
            at_s=float(self.entered_s[number]),
        )


def find_critical_path(spells: Iterable[list[TracedRound]], clocks: Floats, n: int, machine: Machine) -> CriticalPath:
    """Return the path to the rank that is done last.

    Args:
        spells: the traced rounds, the last spell first, each in the order of rounds.
        clocks: when the simulated ranks are done, shape (P,).
        n: how many ranks they stand for; the path is told in real ranks.
        machine: tells which ranks share a node.
    """
    size = len(clocks)
    last = rank = int(np.argmax(clocks)) if size else 0
    found: list[tuple[int, int, int, int, float]] = []
    for spell in spells:
        for traced in reversed(spell):
            here = rank % size
            number = traced.came[here]
            if not number:
                continue
            frm, nbytes = traced.messages[number - 1]
            source = (int(frm[here]) + rank - here) % n
            there = source % size
            found.append((traced.round, rank, source, int(nbytes[there]), float(traced.entered[there])))
            rank = source
    found.reverse()
    rounds, ranks, sources, sent = (np.array([each[at] for each in found], np.int64) for at in range(4))
    q = machine.ranks_per_node
    entered = np.array([each[4] for each in found], np.float64)
    return CriticalPath(last, rounds, ranks, sources, sent, ranks // q != sources // q, entered)
