"""One rank's training loop: gradients over the mesh, gradient descent, and the time of each step."""

from __future__ import annotations

import ctypes
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import astuple

from hpccoll.errors import UnavailableError, WrongResultError
from hpccoll.parallel.activity_log import ActivityKind
from hpccoll.parallel.axis_group import TIED, AxisGroup, MeshGroups
from hpccoll.parallel.data_parallel import ReplicatedParameters
from hpccoll.parallel.mesh import Mesh, slice_microbatches, split_evenly
from hpccoll.parallel.pipeline_parallel import PipelineRank
from hpccoll.parallel.zero import ZeroShards
from hpccoll.plan import ActionKind
from hpccoll.processes.joint_failure import run_on_first_rank
from hpccoll.records import AllocatedBytes, TrainStepRecord
from hpccoll.train import full_parameters
from hpccoll.train.allocations import AllocationLog, measure_allocated_bytes
from hpccoll.train.checkpoint import Checkpoint, CheckpointDirectory
from hpccoll.train.gradient_check import TOLERANCE, GradientCheck, compare_gradients, count_replica_differences
from hpccoll.train.gradient_check import compute_reference_gradients as compute_reference
from hpccoll.train.model import make_model
from hpccoll.train.optimizer import ShardOptimizer
from hpccoll.train.options import TrainOptions
from hpccoll.train.record import RankStep, combine_rank_steps, explain_non_finite, list_sent_bytes
from hpccoll.train.shards import ParameterShard, copy_shards, find_expert
from hpccoll.train.start import TrainingStart
from hpccoll.train.state_copies import StateCopies, StateCopy, StatePiece

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of malloc.h
EVALUATED_SAMPLES = 256  # held-out samples that are evaluated at once


class Trainer:
    """One rank's part of a training run. The constructor and methods not marked as local are collective over `comm`.

    Args:
        comm: a communicator of all ranks of the mesh.
        mesh: the arrangement of the ranks; call `options.require_mesh_fits(mesh)` first.
        start: the state to start from; the default is step 0 with initial parameters.
        recovery: with the option `survive`, the number of recoveries so far, and the copy that the trainer starts from.
    """

    def __init__(
        self,
        comm: Communicator,
        mesh: Mesh,
        options: TrainOptions,
        device: str = "cpu",
        start: TrainingStart | None = None,
        recovery: tuple[int, StateCopy | None] = (0, None),
    ) -> None:
        self.schedule = options.make_schedule(mesh)
        mesh = mesh.place_stages(self.schedule.stage_ranks)
        self.comm, self.mesh, self.options, self.device = comm, mesh, options, device
        self.dtype = getattr(torch, options.dtype)
        self.model = make_model(options.model)
        start = start or TrainingStart(0, 0, self.model.init_parameters(options.seed, self.dtype), resumed=False)
        self.step, self.samples = start.step, start.samples
        self.groups = self._make_groups()
        has_weight_passes = mesh.pp > 1 and ActionKind.BACKWARD_WEIGHT in self.schedule.kinds
        self.layers = self.model.rank_layers(
            self.model,
            mesh,
            comm.rank,
            self.groups,
            start.full,
            device,
            batch=options.batch,
            deferred=[] if has_weight_passes else None,
            recompute=options.recompute,
            sequence_parallel=options.sequence_parallel,
        )
        self.replicas = self._make_replicas()
        self.layers.run_part = self.replicas.run
        self.optimizer = self._make_optimizer(start.optimizer_state)
        self.train, self.held_out = self.model.load_samples()
        self.coordinates, self.sampler = mesh.get_coordinates(comm.rank), mesh.get_sampler(comm.rank)
        self._duplicates = self._find_duplicates()
        self.stopped = False  # whether rank 0 saw the stop file
        self.allocated_bytes: AllocatedBytes | None = None  # of the rank with most; the first step on a CPU sets it
        self.state_copies = self._make_copies(*recovery) if options.survive else None

    def _make_groups(self) -> MeshGroups:
        """Return this rank's groups of ranks along the axes of the mesh; collective."""
        has_replicas = self.mesh.count(*self.options.get_state_replicas(self.mesh)) > 1
        sends_copies = self.options.survive and self.mesh.ranks > 1 and not has_replicas
        tied = self.model.list_tied_ranks(self.mesh, self.comm.rank)
        return MeshGroups.create(self.comm, self.mesh, tied, sends_copies=sends_copies)

    def _make_copies(self, generation: int, kept: StateCopy | None) -> StateCopies:
        """Return the `StateCopies` of this rank, which include the copy `kept` from a recovery; collective."""
        numbers = {x: number for number, x in enumerate(self.layers.parameters)}
        pieces = [StatePiece(numbers[x], *place) for x, *place in self.replicas.list_pieces()]
        copies = StateCopies(self.mesh, self.comm.rank, pieces, self.groups.copies, generation, kept)
        copies.update(self.step, self.samples, self._list_state())
        return copies

    def _list_state(self) -> list[Any]:
        """Return this rank's parameter shards, followed by those of each state of the optimizer."""
        return [x for own in (self.replicas.shards, *self.optimizer.state.values()) for x in own]

    def _make_replicas(self) -> ReplicatedParameters | ZeroShards:
        """Return the parameters of this rank as whole tensors, or as shards of ZeRO; collective."""
        pairs = zip(self.layers.shards, self.layers.parameters, strict=True)
        groups = {parameter: self._get_replicas(shard) for shard, parameter in pairs}
        if not self.options.zero or self.groups.replicas.size == 1:
            return ReplicatedParameters(groups, self.options.bucket_bytes)
        # As a ZeRO unit of its own, the tied weight is cut into the same shards on the ranks of both stages.
        alone = {self.layers.tied_weight} if self.groups.tied is not None else set()
        return ZeroShards(self.layers.list_parameters(), groups, self.options.zero, alone)

    def _make_optimizer(self, optimizer_state: Mapping[str, Mapping[str, Any]]) -> ShardOptimizer:
        """Return the optimizer of this rank's parameters, with the state in `optimizer_state[kind][parameter name]`."""
        own = {
            name: self.replicas.cut_tensors(copy_shards(self.layers.shards, full, self.device))
            for name, full in optimizer_state.items()
        }
        return ShardOptimizer(self.options.optimizer, self.replicas.shards, self.options.steps, self.step, own)

    def _get_replicas(self, shard: ParameterShard) -> AxisGroup:
        """Return the group of ranks over which the gradient of a shard is summed.

        Experts have fewer replicas than other parameters. With sequence parallelism, each rank of tp also computes an
        addend of the gradient of every parameter that tp does not split.
        """
        if find_expert(shard.name) is not None:
            return self.groups.expert_replicas
        sees_own_tokens = self.options.sequence_parallel and shard.shape == shard.full_shape
        return self.groups.token_replicas if sees_own_tokens else self.groups.replicas

    def run_steps(self, stop_file: str | None = None) -> Iterator[TrainStepRecord]:
        """Run each remaining step and yield its record, collectively; end early if rank 0 sees `stop_file`.

        Raises WrongResultError if the loss or the gradient's norm is not finite.
        """
        while self.step < self.options.steps:
            self.groups.reset_counts()
            self.layers.routed.clear()
            begin = time.perf_counter()
            step = f"step {self.step + 1}"
            with torch.profiler.record_function(step), self.groups.log.measure(ActivityKind.STEP, step):
                is_measured = self.allocated_bytes is None and self.device == "cpu"
                loss = self._measure_step() if is_measured else self._run_step()
                if self.device != "cpu":
                    torch.cuda.synchronize()  # include the time of queued kernels in this step
            record = self._exchange_step_record(loss, time.perf_counter() - begin, stop_file)
            if self.state_copies is not None:
                self.state_copies.commit()
            yield record
            if self.stopped:
                return

    def _run_step(self) -> float:
        """Compute the gradients of the next batch and apply them; return this rank's addend of the mean loss."""
        loss = self.compute_gradients()
        self.apply_gradients()
        if self.state_copies is not None:
            self.state_copies.update(self.step, self.samples, self._list_state())
        return loss

    def _measure_step(self) -> float:
        """Run a step, slowed down by measuring `allocated_bytes`; return this rank's addend of the mean loss."""
        with AllocationLog() as log:
            loss = self._run_step()
        lasting = {
            "weights": self.replicas.weights,
            "gradients": [shard.grad for shard in self.replicas.shards],
            "optimizer": [x for values in self.optimizer.state.values() for x in values],
            "buffers": self.replicas.buffers,
            "copies": self.state_copies.tensors if self.state_copies is not None else [],
        }
        own = measure_allocated_bytes(log, lasting)
        rows = self.comm.all_gather(np.array(astuple(own))).tolist()
        self.allocated_bytes = max((AllocatedBytes(*row) for row in rows), key=lambda allocated: allocated.total)
        return loss

    def compute_gradients(self) -> float:
        """Set the `grad` of each of `replicas.shards` to the gradient of the next batch's mean loss; collective.

        Returns this rank's addend of the mean loss, which is zero except on the last pipeline stage.
        """
        inputs, targets = self.get_next_batch()
        microbatches = [
            (self.to_device(inputs[part]), self.to_device(targets[part]))
            for part in slice_microbatches(
                self.options.batch, self.mesh, self.sampler, self.options.count_microbatches(self.mesh)
            )
        ]
        stages = self.layers.stages.values()
        uses = Counter(parameter for stage in stages for parameter in stage.parameters)
        self.replicas.begin({parameter: count * len(microbatches) for parameter, count in uses.items()})
        pipeline = self._make_pipeline([part_targets for _, part_targets in microbatches])
        loss = pipeline.run_step([part_inputs for part_inputs, _ in microbatches])
        self.replicas.finish()
        if self.groups.tied is not None:
            gradient = self.replicas.get_gradient(self.layers.tied_weight)
            # Sum a copy, because the gradient itself may be in a symmetric buffer of the group `replicas`.
            gradient.copy_(self.groups.tied.all_reduce(gradient.clone()))
        return loss

    def get_next_batch(self) -> tuple[Any, Any]:
        """Return inputs and targets of the next global batch, the same on all ranks, without advancing to it; local."""
        return self.train.get_batch(self.options.seed, self.samples, self.options.batch)

    def apply_gradients(self) -> None:
        """Update the parameters by their gradients, and advance the step and sample counts; collective with ZeRO."""
        with self.groups.log.measure(ActivityKind.PASS, "optimizer"):
            self.optimizer.apply()
            self.replicas.gather_parameters()
        self.step += 1
        self.samples += self.options.batch

    def check_gradients(self) -> GradientCheck:
        """Compare all ranks' gradients of the next batch with the gradients that rank 0 computes alone; collective.

        In the result, `first` (the first wrong element) is None except on rank 0. Overwrites the parameters' `grad`.
        """
        self.compute_gradients()
        model = self.model
        own_gradients = self.replicas.gather_tensors([shard.grad for shard in self.replicas.shards])
        gradients = full_parameters.gather_shards(self.comm, self.mesh, model, own_gradients)
        with self.replicas.gathered():
            parameters = full_parameters.gather_shards(self.comm, self.mesh, model, self.layers.parameters)
        check = GradientCheck(0, 0.0, None)
        if gradients is not None and parameters is not None:
            check = self._check_gathered(gradients, parameters)
        wrong, error = self.comm.broadcast(np.array([float(check.wrong), check.error]))
        return GradientCheck(int(wrong), float(error), check.first)

    def _check_gathered(self, gradients: list[list[Any]], parameters: list[list[Any]]) -> GradientCheck:
        """Compare the gradients of all ranks with those of one process; called on rank 0 only.

        Elements in which the replicas of a parameter differ count as wrong, too.
        """
        model = self.model
        full = full_parameters.assemble_parameters(self.mesh, model, parameters)
        inputs, targets = (self.to_device(x).cpu() for x in self.get_next_batch())
        options = self.options
        microbatches = options.count_microbatches(self.mesh)
        groups = [
            part
            for sampler in range(self.mesh.samplers)
            for part in slice_microbatches(options.batch, self.mesh, sampler, microbatches)
        ]
        reference = compute_reference(model, full, inputs, targets, groups, self.mesh.cp)
        check = compare_gradients(model, self.mesh, gradients, reference, TOLERANCE[self.options.dtype])
        differing = count_replica_differences(model, self.mesh, parameters, full)
        first = check.first or ("parameters that ranks share" if differing else None)
        return GradientCheck(check.wrong + differing, check.error, first)

    def evaluate(self) -> tuple[float, float]:
        """Return the mean loss over the held-out samples, and the fraction classified correctly; collective.

        The fraction is 0 for models that do not classify.
        """
        own = split_evenly(len(self.held_out), self.mesh.samplers)[self.sampler]
        counts = self.coordinates["tp"] == 0
        totals = np.zeros(2)
        # All ranks run the same number of passes, because the passes of a mixture of experts are collective over ep.
        passes = -(-len(self.held_out) // (self.mesh.samplers * EVALUATED_SAMPLES))
        for within in split_evenly(own.stop - own.start, passes):
            part = slice(own.start + within.start, own.start + within.stop)
            targets = self.to_device(self.held_out.targets[part])
            with torch.no_grad():
                y = self._make_pipeline([targets]).run_forward(self.to_device(self.held_out.inputs[part]))
                if y is None:
                    continue
                loss = float(self.layers.sum_loss(y, targets))
                classified = targets.dim() == 1 and counts and (y.argmax(1) == targets).sum()
                totals += np.array([loss * counts, float(classified)])
        loss, right = self.comm.all_reduce(totals) / len(self.held_out)
        return float(loss), float(right)

    def save_checkpoint(self, directory: CheckpointDirectory | None) -> Path | None:
        """Write a checkpoint on rank 0; return its path on rank 0, None on other ranks; collective.

        Raises UsageError on all ranks if rank 0 cannot write the checkpoint.
        """
        model = self.model
        arrays: dict[str, Any] = {}
        for prefix, own in {"": self.replicas.shards, **self.optimizer.state}.items():
            by_rank = full_parameters.gather_shards(self.comm, self.mesh, model, self.replicas.gather_tensors(own))
            if by_rank is not None:
                full = full_parameters.assemble_parameters(self.mesh, model, by_rank)
                arrays |= {full_parameters.join_name(prefix, name): x for name, x in full.items()}
        checkpoint = Checkpoint(self.step, self.samples, self.options.get_checkpoint_identity(), arrays)
        return run_on_first_rank(self.comm, lambda: directory.save(checkpoint) if directory is not None else None)

    def close(self) -> None:
        """Free the communicators of the mesh; collective."""
        self.groups.close()

    def discard(self) -> None:
        """Free the memory of the communicators without waiting for other ranks, after the death of a rank; local."""
        self.groups.discard()

    def _make_pipeline(self, targets: list[Any]) -> PipelineRank:
        """Return this rank's part of the pipeline, whose loss uses `targets`, one tensor per micro-batch; local."""

        def loss(y: Any, microbatch: int) -> Any:
            """Return a micro-batch's addend of the batch's mean loss: its summed loss divided by the batch size."""
            return self.layers.sum_loss(y, targets[microbatch]) / self.options.batch

        like = torch.zeros((), dtype=self.dtype, device=self.device)
        return PipelineRank(self.schedule, self.layers.stages, loss, self.groups.pp, like)

    def to_device(self, x: Any) -> Any:
        """Return a NumPy array as a tensor on this run's device, with the run's dtype unless it has integers; local."""
        tensor = torch.from_numpy(x)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def _exchange_step_record(self, loss: float, step_s: float, stop_file: str | None) -> TrainStepRecord:
        """Gather all ranks' measurements of a step, set `stopped`, and return the record on all ranks; collective.

        Only rank 0 looks for the stop file, because network file systems may show it late on other nodes.
        """
        stop = self.comm.rank == 0 and stop_file is not None and Path(stop_file).exists()
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.device != "cpu":
            peak_bytes = torch.cuda.max_memory_allocated(self.device)
        between_stages = [self.groups.pp] if self.groups.tied is None else [self.groups.pp, self.groups.tied]
        mine = RankStep(
            loss if self.coordinates["tp"] == 0 else 0.0,
            self._compute_square_norm(),
            step_s,
            self.groups.comm_seconds,
            self.groups.exposed_seconds,
            sum(group.exposed_seconds for group in between_stages),
            peak_bytes,
            stop,
        )
        groups = self.groups.list_groups()
        axes = list(dict.fromkeys([*(group.axis for group in groups), TIED]))  # the same on all ranks
        row = [*mine, *list_sent_bytes(groups, axes)]
        rows = self.comm.all_gather(np.array(row, np.float64)).tolist()
        record, self.stopped = combine_rank_steps(self.step, self.mesh, self.options, axes, rows)
        problem = explain_non_finite(record, rows, self.options.optimizer.lr)
        if problem is not None:
            raise WrongResultError(problem)
        return record

    def _compute_square_norm(self) -> float:
        """Return the sum of squares of this rank's gradients, without those that another rank counts; local."""
        own = (gradient for parameter, gradient in self.replicas.list_gradients() if parameter not in self._duplicates)
        return sum(float(gradient.double().square().sum()) for gradient in own)

    def _find_duplicates(self) -> set[Any]:
        """Return the parameters whose shards another rank counts in the gradient norm; local.

        If several groups of replicas hold the same shard, only the group whose first rank has `is_copy` unset counts
        this shard.
        """
        first_ranks = {shard.name: self._get_replicas(shard).ranks[0] for shard in self.layers.shards}
        copies = {
            rank: {shard.name for shard in self.model.list_shards(self.mesh, rank) if shard.is_copy}
            for rank in set(first_ranks.values())
        }
        pairs = zip(self.layers.shards, self.layers.parameters, strict=True)
        return {x for shard, x in pairs if shard.name in copies[first_ranks[shard.name]]}


def select_device(options: TrainOptions, local_rank: int) -> str:
    """Return a rank's device and make it torch's current device; a node's ranks are assigned to its GPUs in turn.

    Raises UnavailableError if the options ask for cuda, but torch finds no GPU.
    """
    if options.device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise UnavailableError(
            "--device cuda: torch finds no CUDA device on this node; run on a node with GPUs, or use --device cpu"
        )
    device = f"cuda:{local_rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    return device


def limit_threads(environ: Mapping[str, str]) -> None:
    """Set torch's thread count to 1 unless OMP_NUM_THREADS is set, because by default every rank uses all cores."""
    if not environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Let glibc, if it is the C library, keep the memory of freed tensors for new tensors.

    By default, glibc returns the memory of large tensors to the operating system, and the page faults of new tensors
    take a large part of a training step.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_THRESHOLD, 2**30)
        library.mallopt(TRIM_THRESHOLD, 2**31 - 1)
