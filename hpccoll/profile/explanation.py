"""The efficiencies, findings and call sites of a profile, in the order in which they are printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.profile.calls_in_a_row import CallsInARow, find_calls_in_a_row
from hpccoll.profile.dependencies import CallGraph, build_graph
from hpccoll.profile.efficiency import Efficiencies, compute_efficiencies
from hpccoll.profile.lateness import Lateness, find_late_nodes, find_late_ranks
from hpccoll.profile.load import JobProfile
from hpccoll.profile.slow_links import SlowLink, SlowNode, find_slow_messages
from hpccoll.records import ProfileSiteRecord


@dataclass(frozen=True, slots=True)
class Explanation:
    """A recorded job and the results of its analysis, which `hpccoll profile` prints and writes as an HTML page.

    Attributes:
        profile: the recordings of the job.
        graph: the calls and their dependencies.
        efficiencies: the parallel efficiency and its factors, from 0 to 1.
        late: the ranks for which other ranks wait, the most costly first.
        late_nodes: the nodes whose ranks are all late, the most costly node first.
        calls_in_a_row: the call sites whose many small calls could be joined, the most costly first.
        slow_nodes: the nodes whose messages are slower than those of other nodes, the most costly first.
        links: pairs of ranks with slow messages, other than those of `slow_nodes`, the most costly pair first.
        sites: the number and time of the calls from each line that communicates, the longest time first.
    """

    profile: JobProfile
    graph: CallGraph
    efficiencies: Efficiencies
    late: tuple[Lateness, ...]
    late_nodes: tuple[Lateness, ...]
    calls_in_a_row: tuple[CallsInARow, ...]
    slow_nodes: tuple[SlowNode, ...]
    links: tuple[SlowLink, ...]
    sites: tuple[ProfileSiteRecord, ...]


def explain_profile(profile: JobProfile) -> Explanation:
    """Analyse a recorded job and return the results."""
    graph = build_graph(profile)
    return Explanation(
        profile, graph, compute_efficiencies(graph), tuple(find_late_ranks(graph)), tuple(find_late_nodes(graph)),
        tuple(find_calls_in_a_row(graph)), *find_slow_messages(graph), tuple(rank_sites(graph)),
    )  # fmt: skip


def rank_sites(graph: CallGraph) -> list[ProfileSiteRecord]:
    """Return records of the calls of each operation from each line of a program, those with the longest time first.

    The waiting and transfer times are means over the ranks.
    """
    ranks = len(graph.start_s)
    names = sorted(set(graph.operations))
    number = np.array([names.index(name) for name in graph.operations])[graph.op]
    inside = graph.site >= 0
    keys = graph.site[inside] * len(names) + number[inside]
    pairs, place = np.unique(keys, return_inverse=True)
    wait, transfer = (np.bincount(place, values[inside]) for values in (graph.wait_s, graph.transfer_s))
    order = np.argsort(place, kind="stable")
    parts = np.split(graph.nbytes[inside][order], np.cumsum(np.bincount(place))[:-1]) if len(pairs) else []
    records = [
        ProfileSiteRecord(
            site=graph.profile.sites[int(key) // len(names)], op=names[int(key) % len(names)],
            calls=len(sizes), nbytes=int(np.median(sizes)), wait_s=wait_s, transfer_s=transfer_s,
        )
        for key, sizes, wait_s, transfer_s in zip(
            pairs, parts, (wait / ranks).tolist(), (transfer / ranks).tolist(), strict=True
        )
    ]  # fmt: skip
    return sorted(records, key=lambda record: -(record.wait_s + record.transfer_s))
