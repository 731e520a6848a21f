"""Predicts the times of a barrier by a simulation on a machine model, in which ranks enter at the measured times.

Without a machine model from the user, a model is fitted to the barriers that this run has measured without skew (all
ranks enter together). Predictions without skew show how well one fitted model explains all barriers. Times with skew
are not used in the fit, so they test the predictions of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Floats, Machine, Operation, Plan, simulate

MIN_FITTED = 3  # barriers that a fit needs


@dataclass(frozen=True, slots=True)
class BarrierPrediction:
    """The simulated time of a barrier from the last entry to the last exit, and its exit skew, in seconds."""

    completion_s: float  # time from the last rank's entry to the last exit
    exit_skew_s: float  # time from the first rank's exit to the last exit


def predict_barrier(plan: Plan, machine: Machine, entered_s: Floats) -> BarrierPrediction:
    """Return the simulated time and exit skew of the barrier `plan` on a machine model.

    The ranks enter at the times `entered_s` in seconds, shape (ranks,).
    """
    entered = entered_s - entered_s.min()
    left = machine.call_s + simulate(plan, machine, 0, trace=False, entered_s=entered).clocks_s
    return BarrierPrediction(float(left.max() - entered.max()), float(np.ptp(left)))


def fit_to_barriers(plans: Sequence[Plan], completions_s: Sequence[float], nodes: Sequence[int]) -> Machine | None:
    """Return the machine model on which the simulated times of barriers are closest to the measured ones.

    Args:
        completions_s: the measured median time of each barrier if all ranks enter together.
        nodes: the number of ranks on each node.

    Returns:
        The machine model; None with fewer than MIN_FITTED plans, for one rank, and if nodes have different numbers of
        ranks, which a machine model cannot express.
    """
    from hpccoll.predict.fit import MeasuredRow, fit_barriers

    if len(plans) < MIN_FITTED or plans[0].ranks < 2 or len(set(nodes)) > 1:
        return None
    rows = [
        MeasuredRow(get_algorithm(Operation.BARRIER, plan.algorithm), plan, len(nodes), 0, 1, 0, seconds)
        for plan, seconds in zip(plans, completions_s, strict=True)
        if seconds > 0
    ]
    return fit_barriers(rows, "this run") if len(rows) >= MIN_FITTED else None
