"""Training steps by torch's own parallelism (DDP, DTensor, torch.distributed.pipelining), to compare hpccoll with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

Loss = Callable[[Any, Any], Any]  # called with (outputs, targets); returns a scalar tensor
TORCH_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
LIBRARIES = {"tp": "DTensor", "dp": "DistributedDataParallel", "pp": "torch.distributed.pipelining"}
STYLES: dict[str, ParallelStyle] = {
    "column": ColwiseParallel(),
    "row": RowwiseParallel(),
    "gathered column": ColwiseParallel(output_layouts=Replicate()),
    "vocabulary": RowwiseParallel(input_layouts=Replicate()),  # of an embedding
    # The output becomes a DTensor, so that its gradient is summed over tp once, however many layers use the output.
    "shared output": PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
    ),
}


class TorchTraining:
    """One rank of a training by torch's own parallelism, which hpccoll's training is compared with.

    Layers are split along tp (tensor parallelism) by DTensor, gradients are averaged along dp (data parallelism) by
    DistributedDataParallel, and stages along pp (pipeline parallelism) run by torch.distributed.pipelining. The
    constructor and `run_backward` are collective over an initialised process group of the ranks of the mesh.
    `parameters` has this rank's parameters by name.

    Args:
        module: this rank's pipeline stage, with whole layers.
        loss: returns a micro-batch's contribution to the mean loss over the samples of this rank's replica.
        microbatches: the number of micro-batches per replica and step.
        schedule: a name in TORCH_SCHEDULES.
        sizes: the numbers of ranks along pp, dp and tp, from the outermost to the innermost axis.
        styles: how DTensor splits each layer: maps a layer's name in `module` to a name in STYLES.
        tied: for each parameter that two stages share, the pairs of ranks that sum its gradient.
    """

    def __init__(
        self,
        module: Any,
        loss: Loss,
        microbatches: int,
        schedule: str,
        sizes: Mapping[str, int],
        styles: Mapping[str, str],
        tied: Mapping[str, Sequence[Sequence[int]]],
    ) -> None:
        self.loss, self.microbatches = loss, microbatches
        device = next(module.parameters()).device
        mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.dp, self.tp, self.pp = (mesh[axis] for axis in ("dp", "tp", "pp"))
        self.name = ", ".join(name for axis, name in LIBRARIES.items() if sizes[axis] > 1)
        if self.tp.size() > 1:
            parallelize_module(module, self.tp, {name: STYLES[style] for name, style in styles.items()})
        self._run = self._wrap(module)
        # Keep the parameters, because the first forward pass of DistributedDataParallel removes DTensors from `module`.
        self.parameters = dict(module.named_parameters())
        groups = {name: dist.new_subgroups_by_enumeration(pairs)[0] for name, pairs in tied.items()}
        self._tied = [(self.parameters[name], group) for name, group in groups.items() if group is not None]
        self._schedule: Any = None
        if self.pp.size() > 1:
            at, stages, group = self.pp.get_local_rank(), self.pp.size(), self.pp.get_group()
            stage = PipelineStage(self._run, at, stages, device, group=group)
            self._schedule = TORCH_SCHEDULES[schedule](stage, microbatches, loss_fn=loss, scale_grads=False)

    def _wrap(self, module: Any) -> Any:
        """Return the module, wrapped by DistributedDataParallel if dp has more than one rank. Collective over dp."""
        if self.dp.size() == 1:
            return module
        if self.tp.size() == 1:
            return DistributedDataParallel(module, process_group=self.dp.get_group())
        # DistributedDataParallel accepts DTensors only if it gets a device mesh.
        return DistributedDataParallel(module, device_mesh=self.dp)

    def run_backward(self, inputs: Any, targets: Any) -> float:
        """Compute the gradients of the mean loss over the whole batch; return this rank's share of this loss.

        The shares of all ranks add up to the mean loss. `inputs` and `targets` are the whole batch. Collective.
        """
        x, y = (batch.tensor_split(self.dp.size())[self.dp.get_local_rank()] for batch in (inputs, targets))
        with loss_parallel() if self.tp.size() > 1 else nullcontext():
            loss = self._run_microbatches(x, y) if self._schedule is None else self._run_pipeline(x, y)
        for parameter, group in self._tied:
            dist.all_reduce(get_own_gradient(parameter), group=group)
        return loss / self.dp.size() if self.tp.get_local_rank() == 0 else 0.0

    def _run_microbatches(self, inputs: Any, targets: Any) -> float:
        """Run forward and backward passes of this rank's samples, one micro-batch after the other.

        Returns the sum of the micro-batches' losses.
        """
        total = 0.0
        parts = zip(*(batch.tensor_split(self.microbatches) for batch in (inputs, targets)), strict=True)
        for number, (x, y) in enumerate(parts, 1):
            sums_later = self.dp.size() > 1 and number < self.microbatches
            with self._run.no_sync() if sums_later else nullcontext():
                loss = self.loss(self._run(x), y)
                loss.backward()
            total += get_number(loss)
        return total

    def _run_pipeline(self, inputs: Any, targets: Any) -> float:
        """Run forward and backward passes of this replica's samples through the pipeline, by torch's schedule.

        Returns the sum of the micro-batches' losses on the last stage, and 0 on other stages.
        """
        losses: list[Any] = []
        arguments, options = (inputs,) if self.pp.get_local_rank() == 0 else (), {}
        if self.pp.get_local_rank() == self.pp.size() - 1:
            options = {"target": targets, "losses": losses}
        # torch's PipelineStage sums gradients over dp in the last backward pass, even within `no_sync`.
        # Without `no_sync`, the first backward pass would sum gradients over dp as well.
        with self._run.no_sync() if self.dp.size() > 1 else nullcontext():
            self._schedule.step(*arguments, **options)
        return sum(map(get_number, losses))


def get_own_gradient(parameter: Any) -> Any:
    """Return this rank's shard of a parameter's gradient (DTensor or tensor), as a view of `parameter.grad`.

    The `grad` of a DTensor is first replaced by one that is split like the parameter; this step may be collective.
    """
    if not isinstance(parameter, DTensor):
        return parameter.grad
    # For an embedding that is split over tp, DTensor gives each rank the gradient of the whole embedding.
    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
    return parameter.grad.to_local()


def get_number(loss: Any) -> float:
    """Return a scalar loss, a tensor or a DTensor, as a float; a DTensor has the same value on all ranks of tp."""
    loss = loss.detach()
    return float(loss.to_local() if isinstance(loss, DTensor) else loss)
