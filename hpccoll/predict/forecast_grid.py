"""Which algorithm is fastest over ranks and sizes on a machine.

Shapes: A algorithms, R rank counts, S sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.algorithms.registry import Algorithm
from hpccoll.plan import Machine
from hpccoll.predict.forecast import can_run_on, forecast

Floats: TypeAlias = NDArray[np.float64]
TIE = 1e-9  # two that differ by less, relatively, are equally fast: the first of them is named


@dataclass(frozen=True, slots=True)
class ForecastGrid:
    """Predicted seconds of each algorithm, shape (A, R, S)."""

    machine: Machine
    algorithms: tuple[Algorithm, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: Floats

    def winner(self, ranks: int, nbytes: int) -> Algorithm:
        """Return the fastest at one of the points."""
        at = self.seconds[:, self.ranks.index(ranks), self.sizes.index(nbytes)]
        return self.algorithms[int(np.argmax(at <= at.min() * (1 + TIE)))]


def forecast_grid(
    algorithms: Sequence[Algorithm],
    machine: Machine,
    ranks: Sequence[int],
    sizes: Sequence[int],
    done: Callable[[str], object] = lambda _: None,
) -> ForecastGrid:
    """Simulate every algorithm at every point; `done` is told each algorithm and rank count that is finished.

    Where the ranks of an algorithm would share memory across nodes, it takes for ever.
    """
    seconds = np.full((len(algorithms), len(ranks), len(sizes)), np.inf)
    for a, algorithm in enumerate(algorithms):
        for r, n in enumerate(ranks):
            for s, nbytes in enumerate(sizes if can_run_on(algorithm, n, machine) else ()):
                seconds[a, r, s] = forecast(algorithm, n, machine, nbytes).seconds
            done(f"{algorithm.full_name} on {n} ranks")
    return ForecastGrid(machine, tuple(algorithms), tuple(ranks), tuple(sizes), seconds)


def list_rank_counts(most: int, machine: Machine) -> list[int]:
    """Return rank counts from 2 to `most`: powers of two within a node, then full nodes, each twice as many."""
    q = machine.ranks_per_node
    inside = [1 << k for k in range(1, most.bit_length()) if 1 << k < min(q, most + 1)]
    nodes = [q << k for k in range(most.bit_length()) if 2 <= q << k <= most]
    return inside + nodes
