"""Finds one typical iteration of a job: the program repeats its calls, and this is the repetition of median length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.profile.dependencies import CallGraph

_FEWEST, _LEAST_SPAN = 4, 0.3  # repetitions; of the run time, from the first to the last repetition


@dataclass(frozen=True, slots=True)
class TypicalIteration:
    """The times from `begin_s` to `end_s`, and how many such iterations there are; 0 if the job does not repeat."""

    begin_s: float
    end_s: float
    count: int


def find_typical_iteration(graph: CallGraph) -> TypicalIteration:
    """Return the typical iteration: between two calls, from one site, of the call that rank 0 repeats most rarely.

    A call that is repeated fewer than 4 times, or over less than 30 % of the run time, is no repetition.
    """
    own = np.flatnonzero((graph.rank == 0) & (graph.site >= 0))
    keys = graph.site[own] * len(graph.operations) + graph.op[own]
    best: np.ndarray | None = None
    for key in np.unique(keys):
        times = graph.end_s[own[keys == key]]
        repeats = len(times) >= _FEWEST and times[-1] - times[0] >= _LEAST_SPAN * graph.run_s
        if repeats and (best is None or len(times) < len(best)):
            best = times
    if best is None:
        return TypicalIteration(float(graph.start_s.min()), float(graph.end_s.max()), 0)
    lengths = np.diff(best)
    chosen = int(np.argsort(lengths)[len(lengths) // 2])
    return TypicalIteration(float(best[chosen]), float(best[chosen + 1]), len(lengths))
