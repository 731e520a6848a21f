"""The cost model: predicts times, and the fastest chunk counts, from the steps and bytes that algorithms state.

An algorithm of `steps` steps and C chunks, in which the busiest rank sends m times the message size S, takes about
steps * alpha + max(m S, steps * S / C) * beta seconds. Every step costs a latency alpha, a rank sends no faster than
its link (beta seconds per byte), and no step ends before a chunk has crossed the link. In the cost model, each step of
a pipelined algorithm with k chunks carries 1/k of the bytes that the busiest rank sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpccoll.algorithms import Algorithm, get_algorithm
from hpccoll.plan import Operation
from hpccoll.units import KiB

MAX_CHUNKS = 16  # measured with one rank per core: more chunks cost more waiting than their overlap saves
MIN_CHUNK_BYTES = 128 * KiB

# The algorithms that the cost model chooses from: each sends contiguous messages and was measured on one host.
MODELLED_ALGORITHMS = {
    Operation.ALL_REDUCE: ("rabenseifner", "recursive_doubling", "ring", "tree"),
    Operation.REDUCE_SCATTER: ("bruck", "ring"),
    Operation.ALL_GATHER: ("bruck", "ring"),
    Operation.BROADCAST: ("chain", "tree"),
    Operation.REDUCE: ("chain", "tree"),
    Operation.GATHER: ("tree",),
    Operation.SCATTER: ("tree",),
    Operation.ALL_TO_ALL: ("pairwise",),
    Operation.SCAN: ("chain", "hillis_steele", "tree"),
    Operation.EXSCAN: ("chain", "doubling_123", "tree"),
    Operation.BARRIER: ("dissemination",),
}


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of a message in the cost model: seconds per step (alpha) and per byte (beta).

    The defaults were measured between ranks of one host.
    """

    alpha_s: float = 8e-6
    beta_s_per_byte: float = 1 / 4e9


def predict_seconds(algorithm: Algorithm, ranks: int, chunks: int, nbytes: int, link: LinkCost) -> float:
    """Return the seconds that the cost model predicts for an algorithm; infinity if the algorithm states no cost.

    Args:
        chunks: the number of chunks of a pipelined algorithm; other algorithms ignore this argument.
        nbytes: the message size in bytes.
        link: the cost of a message.
    """
    cost = algorithm.plan(ranks, 0, chunks).cost
    if cost is None:
        return float("inf")
    steps, most = cost.steps, float(cost.most)
    if "chunks" in algorithm.parameters:
        sizes_sent = most * steps / chunks
    else:
        sizes_sent = max(most, steps / _count_plan_chunks(algorithm, ranks))
    return steps * link.alpha_s + sizes_sent * nbytes * link.beta_s_per_byte


def _count_plan_chunks(algorithm: Algorithm, ranks: int) -> int:
    """Return the number of chunks into which the algorithm's plan for `ranks` ranks cuts an unpipelined message."""
    return max(algorithm.plan(ranks).make(np.zeros(1, np.int64)).chunks, 1)


def choose_chunk_count(algorithm: Algorithm, ranks: int, nbytes: int, count: int | None = None) -> int:
    """Return the number of chunks that `algorithm` cuts a message of `nbytes` into, in runs and in simulations.

    The number of chunks is 1 unless the algorithm is pipelined. For a pipelined algorithm, the number of chunks is the
    power of two up to `MAX_CHUNKS` that the model predicts to be fastest, with chunks of at least `MIN_CHUNK_BYTES`.
    If `count`, the number of elements, is given, the number of chunks is at most `count`.
    """
    chunks = _find_fastest_chunk_count(algorithm, ranks, nbytes)
    return chunks if count is None else min(chunks, max(count, 1))


@lru_cache(maxsize=4096)
def _find_fastest_chunk_count(algorithm: Algorithm, ranks: int, nbytes: int) -> int:
    """Return the number of chunks with the lowest predicted time; 1 unless the algorithm is pipelined."""
    if "chunks" not in algorithm.parameters:
        return 1
    limit = min(MAX_CHUNKS, max(nbytes // MIN_CHUNK_BYTES, 1))
    powers = [1 << k for k in range(limit.bit_length())]
    return min(powers, key=lambda chunks: predict_seconds(algorithm, ranks, chunks, nbytes, LinkCost()))


@lru_cache(maxsize=4096)
def find_fastest_algorithm(operation: Operation, ranks: int, nbytes: int) -> Algorithm:
    """Return the algorithm of `MODELLED_ALGORITHMS` that the cost model predicts to be fastest for `nbytes` bytes.

    Predictions that agree to two significant digits are a tie. Of tied algorithms, the one whose plan has the most
    chunks is returned, because its ranks reduce the fewest bytes.
    """

    def sort_key(algorithm: Algorithm) -> tuple[float, int]:
        """Return the predicted seconds rounded to two digits, then the negative chunk count, which breaks ties."""
        chunks = choose_chunk_count(algorithm, ranks, nbytes)
        seconds = predict_seconds(algorithm, ranks, chunks, nbytes, LinkCost())
        return float(f"{seconds:.2g}"), -_count_plan_chunks(algorithm, ranks)

    return min((get_algorithm(operation, name) for name in MODELLED_ALGORITHMS[operation]), key=sort_key)
