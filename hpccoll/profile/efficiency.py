"""The efficiencies of a parallel run, as POP defines them.

- parallel efficiency = load balance x communication efficiency = mean useful time / run time
- load balance = mean / maximum of the useful time of the ranks
- communication efficiency = maximum useful time / run time = serialisation x transfer
- serialisation = maximum useful time / run time on an ideal network, on which messages take no time
- transfer = run time on an ideal network / run time

A rank's useful time is its time outside of communication. Source: co-design.pop-coe.eu/metrics; values
above 0.8 are good.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Floats
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.replay import replay_job


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """The efficiencies of a job, from 0 to 1, and the times from which they are computed, in seconds."""

    load_balance: float
    serialisation: float
    transfer: float
    run_s: float
    ideal_s: float  # the run time on an ideal network
    useful_s: Floats  # (ranks,)
    wait_s: Floats  # (ranks,), in calls, for other ranks
    transfer_s: Floats  # (ranks,), in calls, after all needed ranks had come

    @property
    def communication(self) -> float:
        """The communication efficiency."""
        return self.serialisation * self.transfer

    @property
    def parallel(self) -> float:
        """The parallel efficiency."""
        return self.load_balance * self.communication


def compute_efficiencies(graph: CallGraph) -> Efficiencies:
    """Return the efficiencies of the recorded calls."""
    useful = graph.sum_by_rank(graph.gap_s)
    ideal_s = replay_job(graph, transfer_s=np.zeros(len(graph.rank))).run_s
    most, run_s = float(useful.max()), graph.run_s
    return Efficiencies(
        float(useful.mean()) / most if most else 1.0,
        most / ideal_s if ideal_s else 1.0,
        ideal_s / run_s if run_s else 1.0,
        run_s, ideal_s, useful, graph.sum_by_rank(graph.wait_s), graph.sum_by_rank(graph.transfer_s),
    )  # fmt: skip
