"""Which algorithm `auto` takes, and in how many chunks a message is pipelined: the cost model over stated costs.

An algorithm of `steps` steps in which the busiest rank sends m S takes about steps * alpha + max(m S, steps * S / C) *
beta: every step costs a latency, a rank cannot send faster than its link, nor end a step before its chunk of C has
crossed. Where k chunks follow each other, each step carries m S / k. Measured tables replace this guess where there
are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpccoll.collectives.registry import Algorithm, named, names
from hpccoll.plan.operation import Operation

MOST_CHUNKS = 128


@dataclass(frozen=True, slots=True)
class Link:
    """What a step and a byte cost; the defaults are of ranks on one host, driven from Python."""

    alpha_s: float = 4e-6
    beta_s_per_byte: float = 1 / 4e9


def predicted_s(algorithm: Algorithm, n: int, chunks: int, nbytes: int, link: Link) -> float:
    """Return the seconds that the model gives for a message of `nbytes` (nccl-tests' S)."""
    plan = algorithm.plan(n, 0, chunks)
    if plan.cost is None:
        return float("inf")
    steps, most = plan.cost.steps, float(plan.cost.most)
    pieces = max(plan.make(np.zeros(1, np.int64)).chunks, 1)
    moved = most * steps / chunks if "chunks" in algorithm.takes else max(most, steps / pieces)
    return steps * link.alpha_s + moved * nbytes * link.beta_s_per_byte


@lru_cache(maxsize=4096)
def best_chunks(algorithm: Algorithm, n: int, nbytes: int, link: Link = Link()) -> int:
    """Return the chunk count, a power of two, that the model favours; 1 where the algorithm does not pipeline."""
    if "chunks" not in algorithm.takes:
        return 1
    candidates = [1 << k for k in range(MOST_CHUNKS.bit_length())]
    return min(candidates, key=lambda chunks: predicted_s(algorithm, n, chunks, nbytes, link))


@lru_cache(maxsize=4096)
def best_algorithm(operation: Operation, n: int, nbytes: int, link: Link = Link()) -> Algorithm:
    """Return the algorithm that the model favours for `nbytes` on n ranks."""
    known = [each for name in names(operation) if _modelled(each := named(operation, name), n)]

    def seconds(each: Algorithm) -> float:
        return predicted_s(each, n, best_chunks(each, n, nbytes, link), nbytes, link)

    return min(known, key=seconds)


def _modelled(algorithm: Algorithm, n: int) -> bool:
    """Whether the model fits the algorithm: it knows no nodes, and no step of more than two messages a rank."""
    rounds = algorithm.plan(n).make(np.zeros(1, np.int64))
    return "nodes" not in algorithm.takes and (not rounds.count or sum(int(m.to[0] > 0) for m in rounds.at(0)) <= 2)
