"""Simulate a training step from the plans of its collectives and the pipeline schedule of its passes.

The estimate in `estimate.py` uses closed formulas instead. Estimate and simulation take the same FLOPs per pass and the
same machine model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Machine, Operation, PassTimes, simulate, simulate_schedule
from hpccoll.predict.machine_catalogue import require_capacity
from hpccoll.sizing.communication import GRADIENTS, Traffic
from hpccoll.sizing.expert_routing import ExpertRouting
from hpccoll.sizing.flops import count_pass_flops
from hpccoll.sizing.memory import compute_memory
from hpccoll.sizing.parameters import count_rank_parameters
from hpccoll.sizing.training_setup import TrainingSetup

ALGORITHMS = {"all_to_all": "pairwise"}  # by collective; the others use ring


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """The times, traffic and peak memory of a training step that was simulated from plans.

    `communication_s` and `exposed_s` (the part that no computation hides) include waits.
    """

    traffic: Sequence[Traffic]
    step_s: float
    communication_s: float
    exposed_s: float
    bubble: float  # idle share of the pipeline, mean over its ranks
    peak_bytes: float


def simulate_step(
    setup: TrainingSetup, machine: Machine, traffic: Sequence[Traffic], bucket_bytes: int
) -> SimulatedStep:
    """Return the simulated training step of a setup, whose ranks compute at the peak rate of `machine`.

    Gradients are summed in buckets of `bucket_bytes`; the sum of a bucket starts when the last backward pass has
    computed its gradients, and buckets are summed one after the other. The time of other collectives is divided equally
    among the forward and backward passes. The peak of memory is taken from the estimate, which also follows the plan of
    the schedule. `traffic` is the traffic in the estimate of the setup.
    """
    simulated = [_simulate_traffic(entry, setup, machine) for entry in traffic]
    m, stages = setup.microbatches, setup.pipeline.stages_per_rank
    blocking = sum(sent.seconds for sent in simulated if sent.strategy not in (*GRADIENTS, "pp")) / (2 * m * stages)
    flops, rate = count_pass_flops(setup), require_capacity(machine, "peak_flop_per_s")
    forward, backward = (work / rate / stages for work in (flops.forward, flops.backward + flops.recomputed))
    transfer = sum(
        sent.seconds / sent.calls for sent in simulated if (sent.strategy, sent.collective) == ("pp", "send")
    )
    times = PassTimes(forward + blocking, backward / 2 + blocking, backward / 2, transfer)
    schedule = setup.family.plan(setup.pipeline.stages, m)
    passes = simulate_schedule(schedule, times)
    idle = float(np.mean(passes.get_idle_times())) if setup.mesh.pp > 1 else 0.0
    gradients = sum(sent.seconds for sent in simulated if sent.strategy in GRADIENTS)
    exposed_gradients = _compute_exposed(setup, gradients, backward, bucket_bytes)
    tied = sum(sent.seconds for sent in simulated if (sent.strategy, sent.collective) == ("pp", "all_reduce"))
    others = 2 * m * stages * blocking + idle + tied
    return SimulatedStep(
        simulated,
        passes.time + exposed_gradients + tied,
        gradients + others,
        exposed_gradients + others,
        idle / passes.time,
        compute_memory(setup).total,
    )


def _simulate_traffic(traffic: Traffic, setup: TrainingSetup, machine: Machine) -> Traffic:
    """Return the estimated `traffic` with the bytes that its collective's plan sends, and its simulated time."""
    n = traffic.group
    if setup.routing is not None and traffic.collective == "all_to_all":
        return _simulate_experts(traffic, setup.routing, setup, machine)
    if traffic.collective == "send":
        nbytes = traffic.sent_bytes / traffic.calls
        seconds = machine.within.alpha_s + float(machine.within.transfer_s(np.array(nbytes)))
        return replace(traffic, seconds=traffic.calls * seconds)
    operation = Operation.from_name(traffic.collective)
    plan = get_algorithm(operation, ALGORITHMS.get(traffic.collective, "ring")).plan(n)
    message = traffic.sent_bytes / traffic.calls * n / (n - 1) / (2 if operation is Operation.ALL_REDUCE else 1)
    e = setup.precision.element_bytes
    result = simulate(plan, machine, operation.count_elements(round(message), e, n), e, trace=False)
    sent_bytes = traffic.calls * float((result.within + result.between).max())
    return replace(traffic, sent_bytes=sent_bytes, seconds=traffic.calls * result.seconds)


def _simulate_experts(traffic: Traffic, routing: ExpertRouting, setup: TrainingSetup, machine: Machine) -> Traffic:
    """Return the estimated `traffic` with the bytes and simulated time of all_to_alls of the rows in `routing`.

    In each forward pass, ranks exchange the numbers of rows, send rows to experts and receive the outputs. In each
    backward pass, the gradients of rows and outputs are exchanged in the same way.
    """
    n = traffic.group
    plan = get_algorithm(Operation.ALL_TO_ALL, ALGORITHMS[traffic.collective]).plan(n)
    row_bytes = setup.model.width * setup.precision.element_bytes
    numbers = simulate(plan, machine, setup.model.experts // n, 8, trace=False)
    # Round trips of the rows, to the experts and back, per forward pass.
    repeats = (traffic.calls - routing.passes) / (2 * routing.passes)
    sent_bytes = seconds = 0.0
    for passes in routing.rows.reshape(-1, routing.passes, n, n):
        ways = [simulate(plan, machine, tuple(rows.flat), row_bytes, trace=False) for rows in (*passes, *passes.mT)]
        by_rank = np.sum([way.within + way.between for way in ways], 0)
        sent_bytes = max(sent_bytes, repeats * float(by_rank.max()))
        seconds = max(seconds, repeats * sum(way.seconds for way in ways))
    sent_bytes += routing.passes * float((numbers.within + numbers.between).max())
    seconds += routing.passes * numbers.seconds
    return replace(traffic, sent_bytes=sent_bytes, seconds=seconds)


def _compute_exposed(setup: TrainingSetup, seconds: float, backward_s: float, bucket_bytes: int) -> float:
    """Return the seconds between the end of the last backward pass and the end of the sums of gradients.

    `seconds` is the time of all sums, `backward_s` that of the backward pass, and `bucket_bytes` the size of a bucket.
    """
    nbytes = count_rank_parameters(setup, 0).total * setup.precision.element_bytes
    buckets = max(-(-nbytes // bucket_bytes), 1)
    end = 0.0
    for bucket in range(1, buckets + 1):
        end = max(end, backward_s * bucket / buckets) + seconds / buckets
    return max(end - backward_s, 0.0)
