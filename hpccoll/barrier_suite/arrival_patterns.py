"""Arrival patterns: the planned delays with which ranks enter a barrier; all ranks compute them from a common seed.

The delays of a pattern are proportional to its spread, the largest delay of any rank. Sources of the patterns: Faraj,
Patarasuk and Yuan, A Study of Process Arrival Patterns for MPI Collective Operations, IJPP 2008; Proficz, Improving
All-reduce Collective Operations for Imbalanced Process Arrival Patterns, J. Supercomputing 2018.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from hpccoll.plan import Floats


class ArrivalPattern(StrEnum):
    """A pattern of planned delays, one per rank, with which the ranks enter a barrier, such as one late rank."""

    NONE = "none"  # all ranks enter at the same time
    ONE_LATE = "one_late"  # one rank, which the seed chooses, enters after all others
    ASCENDING = "ascending"  # the ranks enter one after the other, rank 0 first
    DESCENDING = "descending"  # the ranks enter one after the other, rank 0 last
    RANDOM = "random"  # the ranks enter at random times, which differ from round to round
    BIMODAL = "bimodal"  # half of the ranks, which the seed chooses, enter after the other half

    def make_delays(self, rounds: int, ranks: int, spread_s: float, seed: int) -> Floats:
        """Return the delay of each rank in each round in seconds, shape (rounds, ranks), from 0 to `spread_s`.

        With two ranks or more, and any pattern but `none`, the first rank to enter has delay 0 in each round, and the
        last rank to enter has delay `spread_s`. Equal `seed`s give equal delays, so all ranks can compute them.
        """
        random = np.random.default_rng([seed, ranks, list(ArrivalPattern).index(self)])
        if self is ArrivalPattern.NONE or ranks < 2:
            return np.zeros((rounds, ranks))
        steps = np.arange(ranks) / (ranks - 1)
        if self is ArrivalPattern.RANDOM:
            drawn = random.random((rounds, ranks))
            scaled = (drawn - drawn.min(axis=1, keepdims=True)) / np.ptp(drawn, axis=1, keepdims=True)
            return np.asarray(spread_s * scaled)
        late = random.permutation(ranks)[: 1 if self is ArrivalPattern.ONE_LATE else ranks // 2]
        unit = {ArrivalPattern.ASCENDING: steps, ArrivalPattern.DESCENDING: steps[::-1]}.get(
            self, np.isin(np.arange(ranks), late).astype(np.float64)
        )
        return np.tile(spread_s * unit, (rounds, 1))
