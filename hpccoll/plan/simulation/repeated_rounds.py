"""Repeated rounds: a plan of a million equal rounds is simulated by a few of them.

The clocks after a round are sums and maxima of the clocks before it (a max-plus linear map). If a cycle of rounds
advances every clock and every receiving port by the same time d, the next k cycles advance them by k d (Baccelli,
Cohen, Olsder and Quadrat, "Synchronization and Linearity", 1992). A run is a sequence of rounds whose costs repeat with
a stride, the number of rounds of a cycle. The end of a run is found by bisection, and a sample of its rounds is
compared with their counterparts in the first cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm

import numpy as np

from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.round_costs import RoundCosts

LEAST_ROUNDS = 2**12  # a plan with fewer rounds is simulated round by round
MOST_RANKS = 64  # simulated ranks up to which rounds are compared
MOST_STRIDE = 256
FIRST_BLOCK = 8  # rounds between two attempts to find a run; doubled after each attempt that fails
_SAMPLES = 48


def make_cost_signature(costs: RoundCosts) -> bytes:
    """Return a bytes object that is equal for rounds whose costs are equal on all simulated ranks."""
    parts: list[object] = [costs.copying, costs.within, costs.between, costs.messages, costs.accessing, *costs.shared]
    for move in costs.moves:
        parts += [move.source_index, move.busy, move.flight, move.receiving, move.reducing]
    if costs.fences is not None:
        parts += [costs.fences.leader, costs.fences.alpha_s]
    return b"|".join(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode() for part in parts)


def list_strides(chunk_bytes: ChunkBytes, ranks: int) -> list[int]:
    """Return the numbers of rounds after which the costs of rounds may repeat.

    The first number is the period of the chunk sizes. The second number is the least common multiple of the period of
    the chunk sizes and `ranks`, the number of simulated ranks, because the clocks of all ranks can gain the same time
    only in a cycle in which a message can pass all ranks. Numbers above MOST_STRIDE are left out. The list is empty if
    chunk sizes differ by rank.
    """
    if chunk_bytes.sizes.ndim == 2:
        return []
    period = chunk_bytes.period
    return [stride for stride in sorted({period, lcm(period, ranks)}) if stride <= MOST_STRIDE]


def find_run_end(sign: Callable[[int], bytes], first: int, stop: int, stride: int) -> int:
    """Return the end (exclusive) of the rounds from `first` on whose costs repeat every `stride` rounds.

    The result is `first` if no costs repeat.

    Args:
        sign: returns the signature of the costs of a round.
        stop: the number of rounds of the plan.
        stride: the number of rounds of a cycle.
    """
    if stop - first < 4 * stride:
        return first
    cycle = [sign(first + offset) for offset in range(stride)]

    def fits(t: int) -> bool:
        """Whether round t has the costs of the corresponding round of the first cycle."""
        return sign(t) == cycle[(t - first) % stride]

    low, high = first + stride, stop  # bisection: rounds before `low` fit; round `high` does not fit or is the end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    end = high if fits(high - 1) else low
    draw = np.random.default_rng(end)
    samples: Sequence[int] = draw.integers(first, end, _SAMPLES).tolist()
    return end if all(fits(t) for t in samples) else first
