"""The recorded communication of a rank as steps that a benchmark carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hpccoll.profile.dependencies import CallGraph

_REPLAYED: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "all_to_all", "reduce_scatter"}
)  # other collectives are replayed as barriers


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A step of a rank: computing for `gap_s`, then a collective, a message, or a wait for an earlier message.

    `operation` is a collective, `send`, `start_recv`, `recv`, `wait` or `none`; `peer` is the other rank in the world,
    and `nbytes` the size of the buffer of a rank.
    """

    gap_s: float
    operation: str
    comm: int = -1
    nbytes: int = 0
    root: int = 0
    peer: int = -1


def make_steps(graph: CallGraph, rank: int) -> list[ReplayStep]:
    """Return the steps of a rank. Calls that other ranks have not recorded are left out on all ranks."""
    sizes = _CollectiveSizes(graph)
    messages = _count_messages(graph)
    sent, received = messages[rank].copy(), messages[:, rank].copy()
    steps: list[ReplayStep] = []
    for call in np.flatnonzero(graph.rank == rank).tolist():
        gap_s, nbytes = float(graph.gap_s[call]), max(int(graph.nbytes[call]), 0)
        dest, source, need = int(graph.dest[call]), int(graph.source[call]), int(graph.matches.needs[call, 0])
        if graph.root[call] >= 0 or graph.matches.enters[call] >= 0:
            steps.append(sizes.make_step(call, gap_s))
        elif dest >= 0 or source >= 0:
            if dest >= 0 and sent[dest] > 0:
                sent[dest] -= 1
                steps.append(ReplayStep(gap_s, "send", nbytes=nbytes, peer=dest))
            if source >= 0 and received[source] > 0:
                received[source] -= 1
                verb = "recv" if need >= 0 else "start_recv"
                steps.append(ReplayStep(0.0 if dest >= 0 else gap_s, verb, peer=source))
        elif need >= 0:
            steps.append(ReplayStep(gap_s, "wait", peer=int(graph.rank[need])))
        else:
            steps.append(ReplayStep(gap_s, "none"))
    return steps


def _count_messages(graph: CallGraph) -> np.ndarray:
    """Return the number of messages between each two ranks that both have recorded, shape (ranks, ranks)."""
    size = len(graph.start_s)
    sent, received = np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
    sends, receives = graph.dest >= 0, graph.source >= 0
    np.add.at(sent, (graph.rank[sends], graph.dest[sends]), 1)
    np.add.at(received, (graph.source[receives], graph.rank[receives]), 1)
    return np.minimum(sent, received)


class _CollectiveSizes:
    """The sizes of the collectives, on which all ranks agree, and how many ranks have recorded each."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        instance = graph.matches.instance
        count = int(instance.max(initial=-1)) + 1
        self.members = np.bincount(instance[instance >= 0], minlength=count)
        self.most, self.least = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
        known = (instance >= 0) & (graph.nbytes > 0)
        np.maximum.at(self.most, instance[known], graph.nbytes[known])
        np.minimum.at(self.least, instance[known], graph.nbytes[known])

    def make_step(self, call: int, gap_s: float) -> ReplayStep:
        """Return the step of a collective; `none` if some member has not recorded it."""
        graph = self._graph
        number, comm, name = int(graph.matches.instance[call]), int(graph.comm[call]), graph.operations[graph.op[call]]
        if number < 0 or comm < 0 or self.members[number] < len(graph.profile.comms[comm]):
            return ReplayStep(gap_s, "none")
        nbytes = int(self.least[number] if name in ("scatter", "gather") else self.most[number])
        operation = name if name in _REPLAYED and self.most[number] > 0 else "barrier"
        return ReplayStep(gap_s, operation, comm, nbytes, max(int(graph.root[call]), 0))
