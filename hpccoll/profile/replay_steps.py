"""Turns the recorded communication of a rank into steps that the benchmark `hpccoll replay` carries out."""

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
    """A step of a rank in a replayed job: computing, then a collective, a send, or the start or wait of a receive.

    Args:
        gap_s: the seconds of computing.
        operation: a collective, `send`, `start_recv`, `wait` (for a started receive) or `none`.
        comm: index of the communicator of a collective.
        nbytes: the bytes of the rank's buffer.
        root: the root of a collective, as a rank of its communicator.
        peer: the rank in the world at the other end of a message.
        message: the number of the message, which is equal on both ranks.
    """

    gap_s: float
    operation: str
    comm: int = -1
    nbytes: int = 0
    root: int = 0
    peer: int = -1
    message: int = -1


def make_steps(graph: CallGraph, rank: int) -> list[ReplayStep]:
    """Return the steps of rank `rank`, without collectives and messages that some rank has not recorded."""
    sizes, senders = _CollectiveSizes(graph), graph.matches.find_senders()
    started: set[int] = set()  # numbers of messages whose receive was started
    steps: list[ReplayStep] = []
    for call in np.flatnonzero(graph.rank == rank).tolist():
        if graph.root[call] >= 0 or graph.matches.enters[call] >= 0:
            own = [sizes.make_step(call)]
        else:
            own = _list_message_steps(graph, call, senders, started) or [ReplayStep(0.0, "none")]
        steps += [replace(own[0], gap_s=float(graph.gap_s[call])), *own[1:]]
    return steps


def _list_message_steps(graph: CallGraph, call: int, senders: IntArray, started: set[int]) -> list[ReplayStep]:
    """Return the steps for the messages that a call sends and receives.

    Args:
        graph: the recorded calls.
        call: index of the call.
        senders: the index of the call that sends each message, by the number of the message.
        started: the numbers of messages whose receive already has a step; the function adds new ones.
    """
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
    """The bytes of each collective of a recorded job, and the number of ranks that have recorded it.

    All ranks compute the same values, because each of them reads the recordings of all ranks.
    """

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
        """Return the step for the collective of the call with index `call`; `none` if a rank has not recorded it."""
        graph = self._graph
        number, comm, name = int(graph.matches.instance[call]), int(graph.comm[call]), graph.operations[graph.op[call]]
        if number < 0 or comm < 0 or self.members[number] < len(graph.profile.comms[comm]):
            return ReplayStep(0.0, "none")
        nbytes = int(self.least[number] if name in ("scatter", "gather") else self.most[number])
        operation = name if name in _REPLAYED and self.most[number] > 0 else "barrier"
        return ReplayStep(0.0, operation, comm, nbytes, max(int(graph.root[call]), 0))
