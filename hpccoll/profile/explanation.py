"""The efficiencies, findings and call sites of a profile, in the order in which they are printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.profile.calls_in_a_row import CallsInARow, find_calls_in_a_row
from hpccoll.profile.dependencies import CallGraph, build_graph
from hpccoll.profile.efficiency import Efficiencies, compute_efficiencies
from hpccoll.profile.lateness import LateNode, LateRank, find_late_nodes, find_late_ranks
from hpccoll.profile.load import JobProfile
from hpccoll.profile.slow_links import SlowLink, SlowNode, find_slow_messages


@dataclass(frozen=True, slots=True)
class SiteCost:
    """The time that the calls of one operation from one line of the program take.

    Args:
        site: index of the line in the profile's `sites`.
        operation: the operation, such as `all_reduce`.
        calls: the calls of all ranks.
        nbytes: the median bytes of a call; -1 if unknown.
        wait_s: the seconds of waiting for other ranks, as mean over the ranks.
        transfer_s: the other seconds of the calls, as mean over the ranks.
    """

    site: int
    operation: str
    calls: int
    nbytes: int
    wait_s: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A recorded job and the results of its analysis, which `hpccoll profile` prints and writes as an HTML page.

    Attributes:
        profile: the recordings of the job.
        graph: the calls and their dependencies.
        efficiencies: the parallel efficiency and its factors, from 0 to 1.
        late: the ranks for which other ranks wait, the most costly first.
        late_nodes: the nodes of which all ranks are late, the most costly first.
        calls_in_a_row: the call sites whose many small calls could be joined, the most costly first.
        slow_nodes: the nodes whose messages are slower than those of other nodes, the most costly first.
        links: the other pairs of ranks whose messages are slower than those of other pairs, the most costly first.
        sites: the time in calls from each call site, the most expensive first.
    """

    profile: JobProfile
    graph: CallGraph
    efficiencies: Efficiencies
    late: tuple[LateRank, ...]
    late_nodes: tuple[LateNode, ...]
    calls_in_a_row: tuple[CallsInARow, ...]
    slow_nodes: tuple[SlowNode, ...]
    links: tuple[SlowLink, ...]
    sites: tuple[SiteCost, ...]


def explain_profile(profile: JobProfile) -> Explanation:
    """Analyse a recorded job and return the results."""
    graph = build_graph(profile)
    return Explanation(
        profile, graph, compute_efficiencies(graph), tuple(find_late_ranks(graph)), tuple(find_late_nodes(graph)),
        tuple(find_calls_in_a_row(graph)), *find_slow_messages(graph), tuple(rank_sites(graph)),
    )  # fmt: skip


def rank_sites(graph: CallGraph) -> list[SiteCost]:
    """Return the time of each operation at each line of a recorded program, the most expensive first."""
    ranks = len(graph.start_s)
    names = sorted(set(graph.operations))
    number = np.array([names.index(name) for name in graph.operations])[graph.op]
    inside = graph.site >= 0
    keys = graph.site[inside] * len(names) + number[inside]
    found, place = np.unique(keys, return_inverse=True)
    wait, transfer = (np.bincount(place, values[inside]) for values in (graph.wait_s, graph.transfer_s))
    order = np.argsort(place, kind="stable")
    parts = np.split(graph.nbytes[inside][order], np.cumsum(np.bincount(place))[:-1]) if len(found) else []
    costs = [
        SiteCost(int(key) // len(names), names[int(key) % len(names)], len(sizes), int(np.median(sizes)), w, t)
        for key, sizes, w, t in zip(found, parts, (wait / ranks).tolist(), (transfer / ranks).tolist(), strict=True)
    ]
    return sorted(costs, key=lambda cost: -(cost.wait_s + cost.transfer_s))
