"""The estimate of a training step on a machine model: memory, FLOPs, traffic, overlap, and the time of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpccoll.plan import Machine, PassTimes, simulate_schedule
from hpccoll.predict.machine_catalogue import require_capacity
from hpccoll.sizing.communication import Traffic, list_traffic
from hpccoll.sizing.flops import Flops, count_causal_core_flops, count_pass_flops, count_step_flops
from hpccoll.sizing.memory import MemoryBytes, compute_memory
from hpccoll.sizing.overlap import Overlap, list_overlaps
from hpccoll.sizing.training_setup import TrainingSetup

DEFAULT_EFFICIENCY = 0.5  # Megatron-LM reaches 0.42 to 0.56 (Korthikanti et al., arXiv 2205.05198, table 5)
USABLE_MEMORY = 0.9  # the remainder is left for CUDA contexts, the buffers of libraries, and fragmentation


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a training step: computation of the slowest rank, idle time, and exposed communication.

    During exposed communication, the rank computes nothing. `exposed_s` has the seconds of exposed communication by
    parallel strategy.
    """

    compute_s: float
    idle_s: float
    exposed_s: Mapping[str, float]  # by strategy

    @property
    def total_s(self) -> float:
        """The seconds of the whole step."""
        return self.compute_s + self.idle_s + sum(self.exposed_s.values())

    @property
    def bubble(self) -> float:
        """The idle fraction of the pipeline: its idle time divided by the sum of idle and computing time."""
        return self.idle_s / (self.idle_s + self.compute_s)

    @property
    def limit(self) -> str:
        """The name of the longest delay: `bubble` (idle time) or the strategy, such as `tp`, of exposed communication.

        The result is `compute` if the longest delay takes at most a tenth of the step.
        """
        others = {"bubble": self.idle_s, **self.exposed_s}
        longest = max(others, key=lambda name: others[name])
        return longest if others[longest] > 0.1 * self.total_s else "compute"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a training step on a machine model: memory, FLOPs, traffic, overlap and time."""

    setup: TrainingSetup
    machine: Machine
    efficiency: float
    memory: MemoryBytes
    flops: Flops
    traffic: Sequence[Traffic]
    overlaps: Sequence[Overlap]
    time: StepTime

    @property
    def usable_bytes(self) -> float:
        """The bytes of a rank's memory that training may use."""
        return compute_usable_bytes(self.machine)

    @property
    def fits(self) -> bool:
        """Whether the memory of every rank suffices for the training step."""
        return self.memory.total <= self.usable_bytes

    @property
    def utilisation(self) -> float:
        """The model FLOPs utilisation (MFU): the model's FLOPs over those that all ranks could compute in the step."""
        peak = require_capacity(self.machine, "peak_flop_per_s")
        return self.flops.model / (self.time.total_s * peak * self.setup.mesh.ranks)

    @property
    def tokens_per_s(self) -> float:
        """The tokens that all ranks together process per second."""
        return self.setup.batch * self.setup.sequence / self.time.total_s


def compute_usable_bytes(machine: Machine) -> float:
    """Return the bytes of a rank's memory that training may use; UsageError if the machine model states no memory."""
    return USABLE_MEMORY * require_capacity(machine, "memory_bytes")


def make_estimate(setup: TrainingSetup, machine: Machine, efficiency: float = DEFAULT_EFFICIENCY) -> Estimate:
    """Return the estimate of a training step; computation runs at `efficiency` times the machine's peak rate.

    Raises UsageError if the mesh does not divide the model, the batch or the sequence, if the schedule does not allow
    the number of micro-batches, or if the machine model states no peak rate or no memory.
    """
    setup.require_fits()
    require_capacity(machine, "memory_bytes")
    traffic, overlaps = list_traffic(setup, machine), list_overlaps(setup, machine)
    time = compute_step_time(setup, machine, efficiency, traffic)
    return Estimate(setup, machine, efficiency, compute_memory(setup), count_step_flops(setup), traffic, overlaps, time)


def compute_step_time(
    setup: TrainingSetup, machine: Machine, efficiency: float, traffic: Sequence[Traffic]
) -> StepTime:
    """Return the time of a step, with computation at `efficiency` times the peak rate.

    The computing time is the time of all micro-batches on the slowest rank. The idle time is that of the pipeline
    schedule, plus the time of 2 (p-1) transfers that fill and drain a pipeline of p ranks. Computation hides
    communication: the backward pass of the last micro-batch (with ZeRO-2, of all micro-batches) hides that of
    gradients, a forward pass the weights that ZeRO-1 and 2 gather, all passes the messages of ZeRO-3 and of the
    pipeline, and the core of attention (scores and weighted values) the keys and values of ring attention. The
    communication of tensor, sequence and expert parallelism is on the critical path, and is not hidden.
    """
    rate, m = efficiency * require_capacity(machine, "peak_flop_per_s"), setup.microbatches
    flops = count_pass_flops(setup)
    forward, backward = flops.forward / rate, (flops.backward + flops.recomputed) / rate
    compute = m * (forward + backward)
    transfer = next((entry.seconds / entry.calls for entry in traffic if entry.strategy == "pp"), 0.0)
    idle = compute_idle_time(setup, flops, rate) + 2 * (setup.mesh.pp - 1) * transfer
    seconds: dict[str, float] = defaultdict(float)
    for entry in traffic:
        seconds[entry.strategy] += entry.seconds
    hiding = {
        "dp": backward,
        "zero1": forward + backward,
        "zero2": forward + m * backward,
        "zero3": compute,
        "pp": compute,
        "cp": 3 * m * count_causal_core_flops(setup) / rate,
    }
    exposed = {name: max(communication_s - hiding.get(name, 0.0), 0.0) for name, communication_s in seconds.items()}
    return StepTime(compute, idle, exposed)


def compute_rank_seconds(estimate: Estimate, rank: int) -> float:
    """Return the seconds that the rank with index `rank` along pp computes in an estimated step."""
    flops = count_pass_flops(estimate.setup, rank)
    rate = estimate.efficiency * require_capacity(estimate.machine, "peak_flop_per_s")
    return estimate.setup.microbatches * (flops.forward + flops.backward + flops.recomputed) / rate


def compute_idle_time(setup: TrainingSetup, flops: Flops, rate: float) -> float:
    """Return the seconds of a step in which a rank waits for other ranks of its pipeline.

    The idle time is computed by the formula in the schedule's publication, or by a simulation if there is no formula.
    `flops` are the FLOPs of a rank for one micro-batch, and `rate` is the rank's FLOP/s.
    """
    if setup.mesh.pp == 1:
        return 0.0
    stages = setup.pipeline.stages_per_rank
    passes = (flops.forward, flops.forward + flops.recomputed, flops.forward)
    times = PassTimes(*(work / rate / stages for work in passes))
    stated = setup.family.idle_time(setup.pipeline, times)
    if stated is not None:
        return stated
    schedule = setup.family.plan(setup.pipeline.stages, setup.microbatches)
    return max(simulate_schedule(schedule, times).get_idle_times())
