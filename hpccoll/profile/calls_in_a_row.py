"""Finds lines of a program that make many small collectives in a row, such as reducing a vector number by number.

A row is a sequence of calls of one operation from one line on all ranks. Two calls are in one row if, on at least one
rank, the computing between them is short: shorter than the median transfer at this line, and shorter than ten times the
median time between calls at this line. One rank with little computing is enough, so that a rank that loses its core for
a moment does not end a row. The cost of rows is the run time that the job would save with one call per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hpccoll.plan import Floats
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.replay import replay_job

FEWEST_CALLS: Final = 4  # a line whose rows have fewer calls on average is left out
_MOST_BYTES: Final = 65536  # bytes of a call; joining larger calls saves little
_LONGER_GAP: Final = 10.0  # computing for more than this multiple of the usual time ends a row
_SHORTEST_S: Final = 2e-6  # computing for at most these seconds does not end a row


@dataclass(frozen=True, slots=True)
class CallsInARow:
    """Small calls of a collective that one line of the program makes several times in a row, instead of a single call.

    Args:
        site: index of the line in the profile's `sites`.
        operation: the collective, such as `all_reduce`.
        calls: the number of calls of one rank from this line.
        rows: the number of rows that these calls form; each row could be a single call.
        nbytes: the median number of bytes per call.
        saved_s: the run time that the job would save if each row were one call.
    """

    site: int
    operation: str
    calls: int
    rows: int
    nbytes: int
    saved_s: float


def find_calls_in_a_row(graph: CallGraph) -> list[CallsInARow]:
    """Return a `CallsInARow` per line of a program with calls that could be joined, the most costly line first.

    Cost: one simulation of the job per line with calls that could be joined, and one simulation of the unchanged job.
    """
    follows = find_followers(graph)
    base_s = replay_job(graph).run_s if follows.any() else 0.0
    lines = []
    for site, op in {(int(graph.site[call]), int(graph.op[call])) for call in np.flatnonzero(follows)}:
        at_site = (graph.site == site) & (graph.op == op)
        rank = int(graph.rank[np.flatnonzero(at_site)[0]])
        own = at_site & (graph.rank == rank)
        saved_s = base_s - replay_job(graph, *join_rows(graph, follows & at_site)).run_s
        calls = int(own.sum())
        rows = calls - int((own & follows).sum())
        if calls >= FEWEST_CALLS * rows:
            nbytes = int(np.median(graph.nbytes[own]))
            lines.append(CallsInARow(site, graph.operations[op], calls, rows, nbytes, saved_s))
    return sorted(lines, key=lambda calls: -calls.saved_s)


def join_rows(graph: CallGraph, follows: np.ndarray) -> tuple[Floats, Floats]:
    """Return two arrays of seconds, shape (calls,): the computing time before each call, and its transfer time.

    Both are 0 for calls that continue a row; other calls keep their own times. In a simulation with these times, each
    row of calls costs as much as its first call.

    Args:
        graph: the recorded calls.
        follows: for each call, whether it continues a row, as `find_followers` returns it.
    """
    return np.where(follows, 0.0, graph.gap_s), np.where(follows, 0.0, graph.transfer_s)


def find_followers(graph: CallGraph) -> np.ndarray:
    """Return a boolean array, shape (calls,): whether each call follows another one in a row of small collectives.

    The collectives of a row come from one line, with little time between them.
    """
    differs = np.zeros(len(graph.rank), bool)
    for values in (graph.rank, graph.site, graph.op, graph.comm):
        differs[1:] |= values[1:] != values[:-1]
    continues = ~differs & (graph.matches.group >= 0)
    continues[0] = False
    is_small = (graph.nbytes >= 0) & (graph.nbytes <= _MOST_BYTES)
    limit = np.zeros(len(graph.rank))
    for site in np.unique(graph.site[continues]):
        at_site = graph.site == site
        transfer_s = float(np.median(graph.transfer_s[at_site]))
        usual_gap_s = float(np.median(graph.gap_s[at_site & continues]))
        limit[at_site] = min(transfer_s, _LONGER_GAP * usual_gap_s)
    shortest_s = np.full(int(graph.matches.group.max(initial=0)) + 1, np.inf)
    np.minimum.at(shortest_s, graph.matches.group[continues], graph.gap_s[continues])
    return continues & is_small & (shortest_s[graph.matches.group] <= np.maximum(limit, _SHORTEST_S))
