"""Find faults in the results of a preflight: broken or slow links, lost or slow nodes.

A speed counts as slow if it is below a given fraction of the other speeds' median, and if it is also below the median
by more than four times the spread of the other speeds. The spread is the median absolute deviation, scaled to a
standard deviation. The condition on the spread prevents false faults where healthy links differ, as in tapered
networks.

Faults name as few nodes as possible. If a node itself is slow (copies memory or computes slowly), its slow links are
not reported as faults of their own. If all links of a node are slow, one fault reports them and names this node alone.
A fault of a single slow link names both nodes of the link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from hpccoll.preflight.results import DirectedLink, PreflightResults
from hpccoll.records import FaultEntry
from hpccoll.statistics import compute_robust_deviation
from hpccoll.units import GB

DEVIATIONS = 4.0
LATENCY_FACTOR = 0.6  # the threshold for 1/latency is multiplied by this, because latencies vary more than rates


def get_low_ratio(value: float, others: Sequence[float], threshold: float) -> float | None:
    """Return `value` divided by the median of `others` if `value` is exceptionally low, else None.

    A value is exceptionally low if it is below `threshold` times the median, and also below the median by more than
    four times the spread of `others`.

    Args:
        value: a rate; higher is better.
        others: the rates of the other nodes or links; without any, the result is None.
        threshold: a fraction of the median, such as 0.7.
    """
    if not others:
        return None
    middle = median(others)
    is_low = value < threshold * middle and value < middle - DEVIATIONS * compute_robust_deviation(others)
    return value / middle if is_low else None


def find_low_values(values: Mapping[int, float], threshold: float) -> dict[int, float]:
    """Return the exceptionally low values as ratios to the median of the other values, by key.

    `values` are rates by the index of a node or link; `threshold` is that of `get_low_ratio`.
    """
    ratios = {}
    for key, value in values.items():
        ratio = get_low_ratio(value, [other for k, other in values.items() if k != key], threshold)
        if ratio is not None:
            ratios[key] = ratio
    return ratios


def find_faults(results: PreflightResults, threshold: float) -> list[FaultEntry]:
    """Return the faults in the results: lost nodes, broken links, slow nodes, nodes with only slow links, slow links.

    `threshold` is the fraction of the median of the other nodes or links below which a speed may count as slow.
    """
    names = results.nodes
    lost = []
    for name, reason in ((names[node], reason) for node, reason in results.lost.items()):
        remedy = f"check {name}: scontrol show node {name}; does MPI use a network that all nodes share?"
        lost.append(FaultEntry("lost_node", (name,), f"{name} cannot be reached: {reason}", None, remedy, name))
    slow = _find_slow_nodes(results, threshold)
    explained = set(results.lost) | set(slow)
    links = list(results.iter_directed_links())
    broken = _find_broken_links(names, [link for link in links if not _get_ends(link) & set(results.lost)])
    working = [link for link in links if link.broken is None and not _get_ends(link) & explained]
    slow_everywhere = _find_slow_node_links(names, working, threshold)
    rest = [link for link in working if not _get_ends(link) & set(slow_everywhere)]
    return [*lost, *broken, *slow.values(), *slow_everywhere.values(), *_find_slow_links(names, rest, threshold)]


def list_excluded_nodes(faults: Iterable[FaultEntry]) -> list[str]:
    """Return the sorted names of the nodes to exclude from a job (`sbatch --exclude`) so that it avoids all faults."""
    return sorted({fault.exclude for fault in faults})


def _get_ends(link: DirectedLink) -> set[int]:
    """Return the indices of the two nodes of a link, as a set."""
    return {link.source, link.destination}


def _find_slow_nodes(results: PreflightResults, threshold: float) -> dict[int, FaultEntry]:
    """Return a fault for each node that copies memory or computes slowly, by the node's index."""
    faults: dict[int, FaultEntry] = {}
    speeds = {
        node: speed for node in range(len(results.nodes)) if (speed := results.compute_median_speed(node)) is not None
    }
    for verb, unit, values in (
        ("copies", "GB/s in memory", {node: speed.copy_bytes_per_s / GB for node, speed in speeds.items()}),
        ("computes", "Gsin/s", {node: speed.operations_per_s / 1e9 for node, speed in speeds.items()}),
    ):
        for node, ratio in find_low_values(values, threshold).items():
            name, value = results.nodes[node], values[node]
            found = f"{name} is slow: it {verb} {value:.3g} {unit}, {ratio:.2f} times the median of the other nodes"
            if node in faults:
                found = f"{faults[node].found}; it {verb} {ratio:.2f} times theirs"
            remedy = f"check {name}: other processes (top), clock and heat (turbostat), memory (dmidecode, EDAC)"
            faults[node] = FaultEntry("slow_node", (name,), found, ratio, remedy, name)
    return faults


def _find_broken_links(names: Sequence[str], links: Sequence[DirectedLink]) -> list[FaultEntry]:
    """Return a fault for each pair of nodes whose link is broken in either direction; `names` are the nodes' names."""
    reasons = {tuple(sorted(_get_ends(link))): link.broken for link in links if link.broken}
    excluded = _choose_ends(list(reasons))
    faults = []
    for (a, b), reason in reasons.items():
        found = f"the link between {names[a]} and {names[b]} is broken: {reason}"
        remedy = f"on {names[a]}: ping {names[b]}; check firewall, routes and the network that MPI uses"
        faults.append(FaultEntry("broken_link", (names[a], names[b]), found, None, remedy, names[excluded[a, b]]))
    return faults


def _find_slow_node_links(
    names: Sequence[str], links: Sequence[DirectedLink], threshold: float
) -> dict[int, FaultEntry]:
    """Return a fault for each node of which even the fastest link is slow, in rate or latency, by the node's index."""
    best: dict[str, dict[int, float]] = {"sends": {}, "receives": {}, "answers": {}}
    for link in links:
        rate, latency = link.bytes_per_s, link.latency_seconds
        if rate is None or latency is None:
            continue
        for verb, node, value in (
            ("sends", link.source, rate),
            ("receives", link.destination, rate),
            ("answers", link.source, 1 / latency),
            ("answers", link.destination, 1 / latency),
        ):
            best[verb][node] = max(best[verb].get(node, 0.0), value)
    low = {
        verb: find_low_values(values, threshold * LATENCY_FACTOR if verb == "answers" else threshold)
        for verb, values in best.items()
    }
    faults: dict[int, FaultEntry] = {}
    for node in sorted({node for nodes in low.values() for node in nodes}):
        verbs = [verb for verb in best if node in low[verb]]
        details = " and ".join(_format_value(verb, best[verb][node], low[verb][node], "nodes") for verb in verbs)
        found = f"{names[node]}'s link is slow to every peer: at best, it {details}"
        remedy = f"check the link of {names[node]}: cable, port, rate (ethtool, ibstat), errors (ip -s link)"
        ratio = min(low[verb][node] for verb in verbs)
        faults[node] = FaultEntry("slow_node_link", (names[node],), found, ratio, remedy, names[node])
    return faults


def _format_value(verb: str, value: float, ratio: float, others: str) -> str:
    """Return a string such as `sends 5 GB/s, 0.2 times the median of the other nodes`.

    Args:
        verb: `sends`, `receives` or `answers`.
        value: bytes per second or, for `answers`, 1 / latency in seconds.
        ratio: `value` divided by the median of the other nodes or links.
        others: the kind of things to which the value is compared, `nodes` or `links`.
    """
    if verb == "answers":
        return f"answers in {1e6 / value:.4g} us, {1 / ratio:.1f} times the median of the other {others}"
    return f"{verb} {value / GB:.3g} GB/s, {ratio:.2f} times the median of the other {others}"


def _find_slow_links(names: Sequence[str], links: Sequence[DirectedLink], threshold: float) -> list[FaultEntry]:
    """Return a fault for each pair of nodes whose link is slow in either direction."""
    rates = {index: link.bytes_per_s for index, link in enumerate(links) if link.bytes_per_s is not None}
    answers = {index: 1 / link.latency_seconds for index, link in enumerate(links) if link.latency_seconds}
    slow: dict[tuple[int, ...], list[tuple[float, str]]] = {}
    for verb, values, limit in (("sends", rates, threshold), ("answers", answers, threshold * LATENCY_FACTOR)):
        for index, ratio in find_low_values(values, limit).items():
            link = links[index]
            clause = _format_value(verb, values[index], ratio, "links")
            text = f"{names[link.source]} to {names[link.destination]} {clause}"
            slow.setdefault(tuple(sorted(_get_ends(link))), []).append((ratio, text))
    excluded = _choose_ends(list(slow))
    faults = []
    for (a, b), details in sorted(slow.items()):
        found = f"the link between {names[a]} and {names[b]} is slow: {'; '.join(text for _, text in details)}"
        remedy = f"check switches and routes between {names[a]} and {names[b]}; either node may be excluded"
        ratio = min(ratio for ratio, _ in details)
        faults.append(FaultEntry("slow_link", (names[a], names[b]), found, ratio, remedy, names[excluded[a, b]]))
    return faults


def _choose_ends(pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Choose one node of each pair, so that few different nodes are chosen, and return the choice by pair.

    Repeatedly chooses the node that is in most of the pairs of nodes that remain.
    """
    chosen: dict[tuple[int, ...], int] = {}
    remaining = list(pairs)
    while remaining:
        counts = Counter(node for pair in remaining for node in pair)
        worst = max(counts, key=lambda node: (counts[node], node))
        chosen |= {pair: worst for pair in remaining if worst in pair}
        remaining = [pair for pair in remaining if worst not in pair]
    return chosen
