"""Computes the efficiencies of a parallel run, as POP defines them.

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
    """The efficiencies of a job as POP defines them, from 0 to 1, and the times from which they are computed.

    Args:
        load_balance: mean / maximum of the ranks' useful times.
        serialisation: maximum useful time / run time on an ideal network.
        transfer: run time on an ideal network / run time.
        run_s: the run time in seconds.
        ideal_s: the simulated run time in seconds on a network on which messages take no time.
        useful_s: the seconds of each rank outside of communication, shape (ranks,).
        wait_s: the seconds for which each rank waits in calls for other ranks to enter them, shape (ranks,).
        transfer_s: the seconds of each rank in calls minus `wait_s`, shape (ranks,); data moves in this time.
    """

    load_balance: float
    serialisation: float
    transfer: float
    run_s: float
    ideal_s: float
    useful_s: Floats
    wait_s: Floats
    transfer_s: Floats

    @property
    def communication(self) -> float:
        """The communication efficiency: maximum useful time / run time."""
        return self.serialisation * self.transfer

    @property
    def parallel(self) -> float:
        """The parallel efficiency: mean useful time / run time."""
        return self.load_balance * self.communication


def compute_efficiencies(graph: CallGraph) -> Efficiencies:
    """Return the efficiencies of a recorded job. Cost: one replay."""
    useful = graph.sum_by_rank(graph.gap_s)
    ideal_s = replay_job(graph, transfer_s=np.zeros(len(graph.rank))).run_s
    most, run_s = float(useful.max()), graph.run_s
    return Efficiencies(
        float(useful.mean()) / most if most else 1.0,
        most / ideal_s if ideal_s else 1.0,
        ideal_s / run_s if run_s else 1.0,
        run_s, ideal_s, useful, graph.sum_by_rank(graph.wait_s), graph.sum_by_rank(graph.transfer_s),
    )  # fmt: skip
