"""A profile as a GOAL schedule, which LogGOPSim and ATLAHS simulate: computing in nanoseconds, and messages.

A collective becomes the messages of a dissemination barrier of its message size: ceil(log2 n) rounds. Its algorithm in
the MPI library is unknown. Source: Hoefler, Schneider and Lumsdaine, "LogGOPSim", LSAP 2010.
"""

from __future__ import annotations

import numpy as np

from hpccoll.plan import IntArray
from hpccoll.profile.dependencies import CallGraph

_FIRST_COLLECTIVE_TAG = 2**20


def format_goal(graph: CallGraph) -> str:
    """Return the text of the schedule."""
    sent = np.zeros(int(graph.matches.instance.max(initial=-1)) + 1, np.int64)  # bytes of each message
    sends = (graph.dest >= 0) & (graph.matches.instance >= 0)
    sent[graph.matches.instance[sends]] = graph.nbytes[sends]
    programs = []
    for rank in range(graph.profile.size):
        program = _RankProgram(rank)
        for call in np.flatnonzero(graph.rank == rank).tolist():
            _add_call(program, graph, call, sent)
        programs.append(f"rank {rank} {{\n{''.join(program.lines)}}}\n")
    return f"num_ranks {graph.profile.size}\n\n" + "\n".join(programs)


def _add_call(program: _RankProgram, graph: CallGraph, call: int, sent: IntArray) -> None:
    """Append the computing before a call, and its messages; `sent` are the bytes of each matched message."""
    program.add(f"calc {round(1e9 * float(graph.gap_s[call]))}")
    number, nbytes = int(graph.matches.instance[call]), max(int(graph.nbytes[call]), 1)
    dest, source = int(graph.dest[call]), int(graph.source[call])
    if number >= 0 and (dest >= 0 or source >= 0):
        received = nbytes if dest >= 0 else max(int(sent[number]), 1)
        ends = ((dest, f"send {nbytes}b to {dest}"), (source, f"recv {received}b from {source}"))
        program.add(*(f"{text} tag 0" for peer, text in ends if peer >= 0))
    elif graph.matches.enters[call] >= 0 and graph.comm[call] >= 0:
        program.add_dissemination(graph.profile.comms[graph.comm[call]], nbytes, _FIRST_COLLECTIVE_TAG + number)


class _RankProgram:
    """The lines of one rank's program, each of which requires the one before."""

    def __init__(self, rank: int) -> None:
        self.rank, self.label = rank, 0
        self.lines: list[str] = []
        self.latest: list[int] = []

    def add(self, *operations: str) -> None:
        """Append operations that may run at the same time, after all earlier ones."""
        labels = []
        for operation in operations:
            self.label += 1
            labels.append(self.label)
            self.lines.append(f"l{self.label}: {operation}\n")
            self.lines += [f"l{self.label} requires l{before}\n" for before in self.latest]
        self.latest = labels

    def add_dissemination(self, members: tuple[int, ...], nbytes: int, tag: int) -> None:
        """Append the rounds of a dissemination among ranks, of which this one is a member."""
        size, own, distance = len(members), members.index(self.rank), 1
        while distance < size:
            to, source = members[(own + distance) % size], members[(own - distance) % size]
            self.add(f"send {nbytes}b to {to} tag {tag}", f"recv {nbytes}b from {source} tag {tag}")
            distance *= 2
