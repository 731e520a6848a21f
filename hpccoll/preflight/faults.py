"""From what was measured to what is wrong: which nodes, which nodes' links, which single links.

A value is slow when it is both below a fraction of the median of the others, and below that median by four times their
spread (the median absolute deviation, scaled to a standard deviation). Where the others differ that much among
themselves, as across the halves of a tapered network, nobody is accused. Blame goes to the fewest: a node that is slow
by itself explains its links; a node none of whose links is fast has a slow link itself, whatever its peers; only what
is left is a matter between two nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from hpccoll.preflight.results import DirectedLink, PreflightResults
from hpccoll.units import GB

DEVIATIONS = 4.0
TO_SIGMA = 1.4826  # of the median absolute deviation, if values were normal
SLACK = 0.6  # latencies differ more than rates: their inverse has to fall below this share of the threshold
Kind: TypeAlias = Literal["lost_node", "broken_link", "slow_node", "slow_node_link", "slow_link"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Args:
        kind: what it is.
        nodes: the node, or the two ends of the link.
        found: a sentence with the values.
        ratio: the value over the median of the others; None where nothing came through.
        remedy: what to do.
        exclude: the node to leave out of a job.
    """

    kind: Kind
    nodes: tuple[str, ...]
    found: str
    ratio: float | None
    remedy: str
    exclude: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fault as it stands in the record of kind `preflight_summary`."""
        return {
            "kind": self.kind,
            "nodes": list(self.nodes),
            "found": self.found,
            "ratio": self.ratio,
            "remedy": self.remedy,
            "exclude": self.exclude,
        }


def ratio_if_low(value: float, others: Sequence[float], threshold: float) -> float | None:
    """Return `value` over the median of `others` where it is far below them, else None."""
    if not others:
        return None
    middle = median(others)
    spread = TO_SIGMA * median(abs(other - middle) for other in others)
    low = value < threshold * middle and value < middle - DEVIATIONS * spread
    return value / middle if low else None


def find_low_values(values: Mapping[int, float], threshold: float) -> dict[int, float]:
    """Return the keys whose value is far below the others', with its ratio to their median."""
    found = {}
    for key, value in values.items():
        ratio = ratio_if_low(value, [other for at, other in values.items() if at != key], threshold)
        if ratio is not None:
            found[key] = ratio
    return found


def find_faults(survey: PreflightResults, threshold: float) -> list[Fault]:
    """Return what is wrong, the worst kinds first.

    Args:
        survey: what was measured.
        threshold: the fraction of the median of the others below which something counts as slow.
    """
    names = survey.nodes
    found = [_lost(names[node], why) for node, why in survey.lost.items()]
    slow = _slow_nodes(survey, threshold)
    blamed = set(survey.lost) | set(slow)
    directions = list(survey.directions())
    broken = _broken(names, [each for each in directions if not {each.source, each.destination} & set(survey.lost)])
    sound = [each for each in directions if each.broken is None and not {each.source, each.destination} & blamed]
    links = _node_links(names, sound, threshold)
    rest = [each for each in sound if not {each.source, each.destination} & set(links)]
    return [*found, *broken, *slow.values(), *links.values(), *_single_links(names, rest, threshold)]


def choose_excluded(found: Iterable[Fault]) -> list[str]:
    """Return the nodes to leave out so that no fault is left, the fewest."""
    return sorted({fault.exclude for fault in found})


def _lost(name: str, why: str) -> Fault:
    remedy = f"look at {name}: scontrol show node {name}; is MPI bound to a network that all nodes share?"
    return Fault("lost_node", (name,), f"{name} is out of reach: {why}", None, remedy, name)


def _slow_nodes(survey: PreflightResults, threshold: float) -> dict[int, Fault]:
    found: dict[int, Fault] = {}
    speeds = {node: speed for node in range(len(survey.nodes)) if (speed := survey.speed(node)) is not None}
    for what, unit, values in (
        ("copies", "GB/s in memory", {node: speed.copy_bytes_per_s / GB for node, speed in speeds.items()}),
        ("computes", "Gsin/s", {node: speed.operations_per_s / 1e9 for node, speed in speeds.items()}),
    ):
        for node, ratio in find_low_values(values, threshold).items():
            name, value = survey.nodes[node], values[node]
            told = f"{name} is slow: it {what} {value:.3g} {unit}, {ratio:.2f} times the median of the other nodes"
            if node in found:
                told = f"{found[node].found}; it {what} {ratio:.2f} times theirs"
            remedy = f"look at {name}: other processes (top), clock and heat (turbostat), memory (dmidecode, EDAC)"
            found[node] = Fault("slow_node", (name,), told, ratio, remedy, name)
    return found


def _broken(names: Sequence[str], directions: Sequence[DirectedLink]) -> list[Fault]:
    pairs = {tuple(sorted((each.source, each.destination))): each.broken for each in directions if each.broken}
    chosen = _cover(list(pairs))
    found = []
    for (a, b), why in pairs.items():
        told = f"the link between {names[a]} and {names[b]} is broken: {why}"
        remedy = f"on {names[a]}: ping {names[b]}; look at firewall, routes and the network that MPI takes"
        found.append(Fault("broken_link", (names[a], names[b]), told, None, remedy, names[chosen[a, b]]))
    return found


def _node_links(names: Sequence[str], sound: Sequence[DirectedLink], threshold: float) -> dict[int, Fault]:
    """Judge each node by the best that it sends, receives and answers to anyone."""
    best: dict[str, dict[int, float]] = {"sends": {}, "receives": {}, "answers": {}}
    for each in sound:
        rate, latency = each.bytes_per_s, each.latency_seconds
        if rate is None or latency is None:
            continue
        for what, node, value in (
            ("sends", each.source, rate),
            ("receives", each.destination, rate),
            ("answers", each.source, 1 / latency),
            ("answers", each.destination, 1 / latency),
        ):
            best[what][node] = max(best[what].get(node, 0.0), value)
    found: dict[int, Fault] = {}
    low = {
        what: find_low_values(values, threshold if what != "answers" else threshold * SLACK)
        for what, values in best.items()
    }
    for node in sorted({node for nodes in low.values() for node in nodes}):
        told = [_told(what, best[what][node], low[what][node]) for what in best if node in low[what]]
        ratio = min(low[what][node] for what in best if node in low[what])
        words = f"the link of {names[node]} is slow: to none of its peers is it better; it {' and '.join(told)}"
        remedy = f"look at the link of {names[node]}: cable, port, rate (ethtool, ibstat), errors (ip -s link)"
        found[node] = Fault("slow_node_link", (names[node],), words, ratio, remedy, names[node])
    return found


def _told(what: str, value: float, ratio: float) -> str:
    if what == "answers":
        return f"answers in {1e6 / value:.4g} us, {1 / ratio:.1f} times the median of the other nodes"
    return f"{what} {value / GB:.3g} GB/s, {ratio:.2f} times the median of the other nodes"


def _single_links(names: Sequence[str], rest: Sequence[DirectedLink], threshold: float) -> list[Fault]:
    rates = {at: each.bytes_per_s for at, each in enumerate(rest) if each.bytes_per_s is not None}
    answers = {at: 1 / each.latency_seconds for at, each in enumerate(rest) if each.latency_seconds}
    told: dict[tuple[int, ...], list[tuple[float, str]]] = {}
    for what, values, least in (("sends", rates, threshold), ("answers", answers, threshold * SLACK)):
        for at, ratio in find_low_values(values, least).items():
            each = rest[at]
            words = f"{names[each.source]} to {names[each.destination]} {_told(what, values[at], ratio)}"
            words = words.replace("the other nodes", "the other links")
            told.setdefault(tuple(sorted((each.source, each.destination))), []).append((ratio, words))
    chosen = _cover(list(told))
    found = []
    for (a, b), worse in sorted(told.items()):
        words = f"the link between {names[a]} and {names[b]} is slow: {'; '.join(words for _, words in worse)}"
        remedy = f"look at what lies between {names[a]} and {names[b]}: switches, routes; either node may be left out"
        ratio = min(ratio for ratio, _ in worse)
        found.append(Fault("slow_link", (names[a], names[b]), words, ratio, remedy, names[chosen[a, b]]))
    return found


def _cover(pairs: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Return for each pair the end to leave out: again and again the node that is in most pairs that are left."""
    chosen: dict[tuple[int, ...], int] = {}
    left = list(pairs)
    while left:
        counts = Counter(node for pair in left for node in pair)
        node = max(counts, key=lambda each: (counts[each], each))
        chosen |= {pair: node for pair in left if node in pair}
        left = [pair for pair in left if node not in pair]
    return chosen
