"""Finds a typical iteration of a recorded program, for the timeline on the profile's HTML page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.profile.dependencies import CallGraph

_FEWEST = 4  # a line of the program with fewer calls is no repetition
_LEAST_SPAN = 0.3  # the calls of a line that repeats cover at least this share of the run time


@dataclass(frozen=True, slots=True)
class TypicalIteration:
    """The iteration of a recorded program that the timeline on the profile's HTML page shows.

    Args:
        begin_s, end_s: the begin and the end of the iteration, in seconds of the job's common clock.
        count: the number of iterations of the program; 0 if none are found; then the times are those of the job.
    """

    begin_s: float
    end_s: float
    count: int


def find_typical_iteration(graph: CallGraph) -> TypicalIteration:
    """Return the iteration of median length of a recorded program.

    An iteration is the time between the ends of two successive calls of rank 0 from one line. A line qualifies if it
    has at least 4 calls, and if 30 % of the run time or more lies between the ends of its first and last call. Of the
    lines that qualify, the one with the fewest calls is used.
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
