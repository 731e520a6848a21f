"""Compares bytes sent, times and peak memory of the training steps on a mesh: measured, simulated and estimated.

The simulation and the estimate use a machine model that is measured first. For the FLOP/s of the machine model, every
rank trains a copy of the whole model, all ranks at the same time. The cost of messages in the machine model comes from
small and large all_reduces.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log2
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from hpccoll.communicator import Communicator
from hpccoll.parallel.mesh import Mesh
from hpccoll.plan import Link, Machine
from hpccoll.records import AccountEntry, TrainAccountRecord, TrainStepRecord
from hpccoll.runtime.job import load_mpi
from hpccoll.sizing import make_estimate
from hpccoll.sizing.expert_routing import ExpertRouting
from hpccoll.sizing.flops import count_step_flops
from hpccoll.sizing.step_simulation import simulate_step
from hpccoll.train.estimated_setup import make_training_setup
from hpccoll.train.options import UNTIMED_STEPS
from hpccoll.train.record import describe_mesh
from hpccoll.train.trainer import Trainer

if TYPE_CHECKING:
    from hpccoll.sizing import Estimate, TrainingSetup
    from hpccoll.sizing.step_simulation import SimulatedStep
    from hpccoll.train.options import TrainOptions

CALIBRATED_STEPS, CALIBRATED_CALLS = 4, 9
LARGE = 2**20  # elements of a large all_reduce


def measure_machine(comm: Communicator, options: TrainOptions) -> Machine:
    """Measure training steps and all_reduces; return FLOP/s, latency, bandwidth and memory of a rank as a `Machine`.

    Collective. Each rank trains a copy of the whole model for some steps, without communication. The FLOP/s are those
    of the slowest rank, and the time of a training step includes the optimizer.
    """
    alone = replace(options, batch=max(options.batch // comm.size, 1), steps=CALIBRATED_STEPS, microbatches=1)
    alone = replace(alone, sequence_parallel=False, schedule="1f1b", survive=False)
    with Communicator(load_mpi().COMM_SELF) as self_comm:
        trainer = Trainer(self_comm, Mesh(), alone)
        seconds = median([step.step_s for step in trainer.run_steps()][UNTIMED_STEPS:])
        trainer.close()
    flops = count_step_flops(make_training_setup(alone, Mesh()))
    rate = comm.all_reduce(np.array([(flops.model + flops.recomputed) / seconds]), op="min")[0]
    small, large = (_time_all_reduce(comm, elements) for elements in (1, LARGE))
    alpha = small / (2 * ceil(log2(comm.size))) if comm.size > 1 else 0.0
    sent = 2 * (comm.size - 1) / comm.size * 4 * LARGE
    beta = max(large - small, 0.0) / sent if comm.size > 1 else 0.0
    link = Link.one_port(alpha, beta)
    memory = psutil.virtual_memory().total / comm.size
    return Machine("this machine", comm.size, link, link, 1, 0.0, peak_flop_per_s=float(rate), memory_bytes=memory)


def _time_all_reduce(comm: Communicator, elements: int) -> float:
    """Return the median seconds of an all_reduce of `elements` float32 values. Collective over `comm`.

    The time of a call is that of its slowest rank.
    """
    x, times = torch.ones(elements), []
    for _ in range(CALIBRATED_CALLS):
        comm.barrier()
        begin = time.perf_counter()
        comm.all_reduce(x, "max")
        times.append(time.perf_counter() - begin)
    return float(np.median(comm.all_reduce(np.array(times), op="max")))


def run_account(
    comm: Communicator,
    label: str,
    mesh: Mesh,
    options: TrainOptions,
    machine: Machine,
    on_step: Callable[[TrainStepRecord], None],
) -> TrainAccountRecord:
    """Train on a mesh; return a record of bytes, times and memory: measured, simulated and estimated. Collective."""
    even_setup, routing = make_training_setup(options, mesh), None
    trainer = Trainer(comm, mesh, options)
    steps = []
    for step in trainer.run_steps():
        on_step(step)
        steps.append(step)
        routing = routing or gather_routing(comm, mesh, trainer.layers.routed)
    trainer.close()
    assert trainer.allocated_bytes is not None  # noqa: S101 - the first step on a CPU measures them
    setup = replace(even_setup, routing=routing)
    estimate, even_estimate = (make_estimate(own_setup, machine, efficiency=1) for own_setup in (setup, even_setup))
    simulated = simulate_step(setup, machine, estimate.traffic, options.bucket_bytes)
    peaks = estimate.memory.total, even_estimate.memory.total
    return TrainAccountRecord(
        **describe_mesh(mesh, options),
        label=label,
        model=options.model.name,
        batch=options.batch,
        microbatches=setup.microbatches,
        peak_flop_per_s=machine.peak_flop_per_s or 0.0,
        alpha_s=machine.within.alpha_s,
        beta_s_per_byte=machine.within.beta_s_per_byte,
        entries=(
            *_list_bytes(steps[0], simulated, estimate, even_estimate),
            *_list_times(steps[UNTIMED_STEPS:], simulated, estimate, setup),
            _make_bytes_entry("peak bytes", trainer.allocated_bytes.total, simulated.peak_bytes, *peaks),
        ),
    )


def gather_routing(comm: Communicator, mesh: Mesh, routed: Sequence[Any]) -> ExpertRouting | None:
    """Return how many rows of tokens each rank sent to the experts of each rank in a step; None without experts.

    Collective. `routed` has a tensor of shape (experts) for each forward pass of a mixture of experts: the number of
    this rank's tokens that are sent to each expert.
    """
    if not routed:
        return None
    own = torch.stack(list(routed)).unflatten(1, (mesh.ep, -1)).sum(2)  # (q, p): rows for each rank of ep
    by_rank = comm.all_gather(own.numpy())  # (ranks, q, p)
    groups = sorted(
        {(mesh.get_coordinates(rank)["pp"], *mesh.get_group_ranks(rank, "ep")) for rank in range(mesh.ranks)}
    )
    rows = by_rank[np.array(groups)[:, 1:]].swapaxes(1, 2)  # (pp * groups, q, p, p)
    return ExpertRouting(rows.reshape(mesh.pp, -1, *rows.shape[1:]))


def _make_bytes_entry(quantity: str, measured: float, simulated: float, estimated: float, even: float) -> AccountEntry:
    """Return the `AccountEntry` of a quantity in bytes, with its measured, simulated and estimated values.

    `even` is the estimate for tokens that choose experts evenly; the entry omits it if it equals `estimated`.
    """
    return AccountEntry(quantity, measured, simulated, estimated, None if even == estimated else even)


def _list_bytes(
    step: TrainStepRecord, simulated: SimulatedStep, estimate: Estimate, even_estimate: Estimate
) -> list[AccountEntry]:
    """Return the bytes that a rank sends in a step, measured, simulated and estimated: one entry per operation.

    `even_estimate` assumes that tokens choose experts evenly.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for operations in (step.sent_bytes or {}).values():
        for collective, nbytes in operations.items():
            totals[collective][0] += nbytes
    for plan in simulated.traffic:
        totals[plan.collective][1] += plan.sent_bytes
    for column, estimated in ((2, estimate), (3, even_estimate)):
        for formula in estimated.traffic:
            totals[formula.collective][column] += formula.sent_bytes
    return [_make_bytes_entry(f"{collective} bytes", *values) for collective, values in sorted(totals.items())]


def _list_times(
    steps: Sequence[TrainStepRecord], simulated: SimulatedStep, estimate: Estimate, setup: TrainingSetup
) -> list[AccountEntry]:
    """Return entries for the step time, its fractions of communication and exposed communication, and the bubble.

    Waits for other ranks count as communication.
    """
    estimated = estimate.time
    total_s, idle_s = estimated.total_s, estimated.idle_s
    communication_s = sum(entry.seconds for entry in estimate.traffic) + idle_s
    exposed_s = sum(estimated.exposed_s.values()) + idle_s
    entries = [
        AccountEntry("step s", median(step.step_s for step in steps), simulated.step_s, total_s),
        AccountEntry(
            "communication share",
            median(step.comm_s / step.step_s for step in steps),
            simulated.communication_s / simulated.step_s,
            communication_s / total_s,
        ),
        AccountEntry(
            "exposed share",
            median(step.exposed_comm_s / step.step_s for step in steps),
            simulated.exposed_s / simulated.step_s,
            exposed_s / total_s,
        ),
    ]
    if setup.mesh.pp > 1:
        measured = median(step.bubble or 0.0 for step in steps)
        entries.append(AccountEntry("bubble", measured, simulated.bubble, estimated.bubble))
    return entries
