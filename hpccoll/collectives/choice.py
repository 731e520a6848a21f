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

from hpccoll.collectives.registry import Algorithm, named
from hpccoll.plan.operation import Operation

MOST_CHUNKS = 16  # more cost more in waiting than they hide, with as many ranks as cores (measured)
LEAST_CHUNK_BYTES = 128 * 1024

# What auto takes into account while no measured table says more: plans whose messages are single pieces of memory and
# that were held against the others on one host.
UNTUNED = {
    Operation.ALL_REDUCE: ("rabenseifner", "recursive_doubling", "ring", "tree"),
    Operation.REDUCE_SCATTER: ("bruck", "ring"),
    Operation.ALL_GATHER: ("bruck", "ring"),
    Operation.BROADCAST: ("chain", "tree"),
    Operation.REDUCE: ("chain", "tree"),
    Operation.GATHER: ("tree",),
    Operation.SCATTER: ("tree",),
    Operation.ALL_TO_ALL: ("pairwise",),
    Operation.BARRIER: ("dissemination",),
}


@dataclass(frozen=True, slots=True)
class Link:
    """What a step and a byte cost; the defaults are of ranks on one host, driven from Python."""

    alpha_s: float = 8e-6
    beta_s_per_byte: float = 1 / 4e9


def predicted_s(algorithm: Algorithm, n: int, chunks: int, nbytes: int, link: Link) -> float:
    """Return the seconds that the model gives for a message of `nbytes` (nccl-tests' S)."""
    cost = algorithm.plan(n, 0, chunks).cost
    if cost is None:
        return float("inf")
    steps, most = cost.steps, float(cost.most)
    moved = most * steps / chunks if "chunks" in algorithm.takes else max(most, steps / _pieces(algorithm, n))
    return steps * link.alpha_s + moved * nbytes * link.beta_s_per_byte


def _pieces(algorithm: Algorithm, n: int) -> int:
    return max(algorithm.plan(n).make(np.zeros(1, np.int64)).chunks, 1)


@lru_cache(maxsize=4096)
def best_chunks(algorithm: Algorithm, n: int, nbytes: int, link: Link = Link()) -> int:
    """Return the chunk count, a power of two, that the model favours; 1 where the algorithm does not pipeline."""
    if "chunks" not in algorithm.takes:
        return 1
    most = min(MOST_CHUNKS, max(nbytes // LEAST_CHUNK_BYTES, 1))
    candidates = [1 << k for k in range(most.bit_length())]
    return min(candidates, key=lambda chunks: predicted_s(algorithm, n, chunks, nbytes, link))


@lru_cache(maxsize=4096)
def best_algorithm(operation: Operation, n: int, nbytes: int, link: Link = Link()) -> Algorithm:
    """Return the algorithm that the model favours for `nbytes` on n ranks.

    Of those that it cannot tell apart, the one that cuts the message finest: it also has the least to reduce.
    """
    known = [named(operation, name) for name in UNTUNED[operation]]

    def rank(each: Algorithm) -> tuple[float, int]:
        seconds = predicted_s(each, n, best_chunks(each, n, nbytes, link), nbytes, link)
        return float(f"{seconds:.2g}"), -_pieces(each, n)

    return min(known, key=rank)
