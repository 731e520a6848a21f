"""Pairs of ranks between which messages take longer than messages of the same size between other ranks.

The cost of a slow link is the run time that the replay saves if its messages take the median time of the other pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hpccoll.plan import Floats
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.replay import replay_job

SLOWER: Final = 3.0  # times the median of the pairs, from which on a link is slow
_FEWEST_MESSAGES, _FEWEST_PAIRS = 4, 3


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A pair of ranks whose messages take `seconds`, and those between other ranks `usual_s`, as medians."""

    source: int
    dest: int
    messages: int
    nbytes: int
    seconds: float
    usual_s: float
    saved_s: float


def find_slow_links(graph: CallGraph) -> list[SlowLink]:
    """Return the slow links, the most costly first."""
    need = graph.matches.needs[:, 0]
    received = np.flatnonzero((graph.matches.received >= 0) & (need >= 0))
    if not len(received):
        return []
    size = len(graph.start_s)
    pair = graph.rank[need[received]] * size + graph.rank[received]
    nbytes = graph.nbytes[need[received]]
    found, base_s = [], replay_job(graph).run_s
    for message_bytes in np.unique(nbytes).tolist():
        same = nbytes == message_bytes
        pairs = [each for each in np.unique(pair[same]).tolist() if (same & (pair == each)).sum() >= _FEWEST_MESSAGES]
        medians = {each: float(np.median(graph.transfer_s[received[same & (pair == each)]])) for each in pairs}
        usual_s = float(np.median(list(medians.values()))) if len(pairs) >= _FEWEST_PAIRS else np.inf
        for each, seconds in medians.items():
            if seconds > SLOWER * usual_s:
                calls = received[same & (pair == each)]
                saved_s = base_s - replay_job(graph, transfer_s=_shorten(graph, calls, usual_s)).run_s
                source, dest = divmod(each, size)
                found.append(SlowLink(source, dest, len(calls), message_bytes, seconds, usual_s, saved_s))
    return sorted(found, key=lambda link: -link.saved_s)


def _shorten(graph: CallGraph, calls: np.ndarray, usual_s: float) -> Floats:
    """Return the transfers of all calls, if those of `calls` took at most `usual_s`."""
    transfer_s = graph.transfer_s.copy()
    transfer_s[calls] = np.minimum(transfer_s[calls], usual_s)
    return transfer_s
