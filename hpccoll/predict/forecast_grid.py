"""Forecasts of several algorithms over a grid of rank counts and message sizes, and the fastest at each point.

In the shapes of arrays, A, R and S are the numbers of algorithms, rank counts and message sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.algorithms import Algorithm
from hpccoll.plan import Floats, Machine
from hpccoll.predict.forecast import can_run_on, forecast
from hpccoll.units import format_count

TIE = 1e-9  # relative difference up to which times are equal; the first such algorithm wins


@dataclass(frozen=True, slots=True)
class ForecastGrid:
    """Predicted times of several algorithms at several rank counts and message sizes (bytes) on one machine.

    `seconds` has shape (algorithms, ranks, sizes); the time is infinite where an algorithm cannot run.
    """

    machine: Machine
    algorithms: tuple[Algorithm, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: Floats

    def find_winner(self, ranks: int, nbytes: int) -> Algorithm:
        """Return the fastest algorithm at a rank count and message size (`nbytes`), which the grid must hold."""
        seconds = self.seconds[:, self.ranks.index(ranks), self.sizes.index(nbytes)]
        return self.algorithms[int(np.argmax(seconds <= seconds.min() * (1 + TIE)))]


def forecast_grid(
    algorithms: Sequence[Algorithm],
    machine: Machine,
    ranks: Sequence[int],
    sizes: Sequence[int],
    done: Callable[[str], object] = lambda _: None,
) -> ForecastGrid:
    """Simulate every algorithm at every rank count and message size (bytes); return the times as a `ForecastGrid`.

    `done` is called after each algorithm and rank count with a description such as `all_reduce/ring on 8 ranks`, to
    show progress.
    """
    seconds = np.full((len(algorithms), len(ranks), len(sizes)), np.inf)
    for a, algorithm in enumerate(algorithms):
        for r, n in enumerate(ranks):
            for s, nbytes in enumerate(sizes if can_run_on(algorithm, n, machine) else ()):
                seconds[a, r, s] = forecast(algorithm, n, machine, nbytes).seconds
            done(f"{algorithm.full_name} on {format_count(n, 'rank')}")
    return ForecastGrid(machine, tuple(algorithms), tuple(ranks), tuple(sizes), seconds)


def list_rank_counts(max_ranks: int, machine: Machine) -> list[int]:
    """Return the rank counts of a winner map, from 2 to at most `max_ranks`.

    Rank counts within a node are powers of two; each larger rank count fills a number of nodes that is a power of two.
    """
    q = machine.ranks_per_node
    inside = [1 << k for k in range(1, max_ranks.bit_length()) if 1 << k < min(q, max_ranks + 1)]
    nodes = [q << k for k in range(max_ranks.bit_length()) if 2 <= q << k <= max_ranks]
    return inside + nodes
