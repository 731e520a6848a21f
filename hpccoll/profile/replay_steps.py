"""The recorded communication of a rank as steps that a benchmark carries out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hpccoll.plan import IntArray
from hpccoll.profile.dependencies import CallGraph

_REPLAYED: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "all_to_all", "reduce_scatter"}
)  # other collectives are replayed as barriers


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A step of a rank: computing for `gap_s`, then a collective, or a part of a message.

    `operation` is a collective, `send`, `start_recv`, `wait` (until the message was received) or `none`; `peer` is the
    other rank in the world, and `nbytes` the size of the buffer of a rank.
    """

    gap_s: float
    operation: str
    comm: int = -1
    nbytes: int = 0
    root: int = 0
    peer: int = -1
    message: int = -1  # its number


def make_steps(graph: CallGraph, rank: int) -> list[ReplayStep]:
    """Return the steps of a rank. Calls that other ranks have not recorded are left out on all ranks."""
    sizes, senders = _CollectiveSizes(graph), graph.matches.find_senders()
    started: set[int] = set()  # the messages whose receive was started
    steps: list[ReplayStep] = []
    for call in np.flatnonzero(graph.rank == rank).tolist():
        if graph.root[call] >= 0 or graph.matches.enters[call] >= 0:
            own = [sizes.make_step(call)]
        else:
            own = _list_message_steps(graph, call, senders, started) or [ReplayStep(0.0, "none")]
        steps += [replace(own[0], gap_s=float(graph.gap_s[call])), *own[1:]]
    return steps


def _list_message_steps(graph: CallGraph, call: int, senders: IntArray, started: set[int]) -> list[ReplayStep]:
    """Return the steps of a call for the messages that it sends and receives."""
    matches, steps = graph.matches, []
    sent, received, instance = (int(of[call]) for of in (matches.sent, matches.received, matches.instance))
    if sent >= 0:
        nbytes = max(int(graph.nbytes[call]), 0)
        steps.append(ReplayStep(0.0, "send", nbytes=nbytes, peer=int(graph.dest[call]), message=sent))
    send = int(senders[instance]) if instance >= 0 else -1
    if send >= 0 and instance not in started and (received >= 0 or send != call):
        started.add(instance)
        nbytes = max(int(graph.nbytes[send]), 0)
        steps.append(ReplayStep(0.0, "start_recv", nbytes=nbytes, peer=int(graph.rank[send]), message=instance))
    if received >= 0:
        steps.append(ReplayStep(0.0, "wait", message=received))
    return steps


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

    def make_step(self, call: int) -> ReplayStep:
        """Return the step of a collective; `none` if some member has not recorded it."""
        graph = self._graph
        number, comm, name = int(graph.matches.instance[call]), int(graph.comm[call]), graph.operations[graph.op[call]]
        if number < 0 or comm < 0 or self.members[number] < len(graph.profile.comms[comm]):
            return ReplayStep(0.0, "none")
        nbytes = int(self.least[number] if name in ("scatter", "gather") else self.most[number])
        operation = name if name in _REPLAYED and self.most[number] > 0 else "barrier"
        return ReplayStep(0.0, operation, comm, nbytes, max(int(graph.root[call]), 0))
