"""Faulty data-parallel training steps of small models, which the tests of `hpccoll.parity` must detect.

Each step adds the gradients of a batch to the parameters, and returns the mean loss. Its docstring states its fault.
`mesh` is the mesh of ranks, `dp` its data-parallel axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that users of torch know

from hpccoll.parity import ParityCase, ParityMesh

INPUTS, HIDDEN, OUTPUTS, SAMPLES, MICROBATCHES = 6, 8, 5, 12, 3
Batch = Sequence[torch.Tensor]


def compute_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean square error of the outputs for the inputs `x`, relative to the targets `y`."""
    return F.mse_loss(model(x), y)


def make_batch(samples: int = SAMPLES) -> Batch:
    """Return random inputs and targets in float64, of shapes (samples, INPUTS) and (samples, OUTPUTS)."""
    return torch.randn(samples, INPUTS, dtype=torch.float64), torch.randn(samples, OUTPUTS, dtype=torch.float64)


def make_mlp(between: nn.Module | None = None) -> nn.Module:
    """Return a float64 MLP: two linear layers with the module `between` (by default Tanh) between them."""
    layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), between or nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))
    return layers.double()


def list_gradients(model: nn.Module) -> list[torch.Tensor]:
    """Return the gradients of all parameters that have one."""
    return [x.grad for x in model.parameters() if x.grad is not None]


def accumulate(model: nn.Module, batch: Batch, scale: float = 1 / MICROBATCHES) -> float:
    """Add the gradients of all MICROBATCHES micro-batches, times `scale`, to those of `model`; return the mean loss."""
    total = 0.0
    for x, y in zip(*(each.chunk(MICROBATCHES) for each in batch), strict=True):
        loss = compute_loss(model, x, y)
        (loss * scale).backward()
        total += float(loss.detach()) / MICROBATCHES
    return total


def average(model: nn.Module, mesh: ParityMesh) -> None:
    """Average all gradients over the ranks of dp, in place."""
    for gradient in list_gradients(model):
        mesh.groups.dp.all_reduce(gradient).div_(mesh.sizes.dp)


def leave_unwrapped(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    """Return the model unchanged; it needs no wrapper, because the training step itself communicates."""
    return model


def plant_in_dp(backward: Callable[[nn.Module, Batch, ParityMesh], Any], **changes: Any) -> Callable[[], ParityCase]:
    """Return a function that builds a case with a faulty data-parallel step.

    Args:
        backward: the faulty step.
        changes: for each field of the case to change, such as `model`, a function that returns its value.
    """

    def build() -> ParityCase:
        case = ParityCase(make_mlp(), make_batch(), compute_loss, leave_unwrapped, backward, MICROBATCHES)
        return replace(case, **{name: make() for name, make in changes.items()})

    return build


def scaled_by_microbatches(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Do not divide the loss by the number of micro-batches."""
    loss = accumulate(model, batch, scale=1.0)
    average(model, mesh)
    return loss


def averaged_instead_of_summed(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Average gradients that are already divided by dp."""
    loss = accumulate(model, batch, scale=1 / MICROBATCHES / mesh.sizes.dp)
    average(model, mesh)
    return loss


def loss_without_scale(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Sum gradients over dp without dividing them by dp."""
    loss = accumulate(model, batch)
    for gradient in list_gradients(model):
        mesh.groups.dp.all_reduce(gradient)
    return loss


def no_reduction(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Do not sum gradients over dp."""
    return accumulate(model, batch)


def one_bucket_too_few(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Omit the first gradient from the sum over dp."""
    loss = accumulate(model, batch, scale=1 / MICROBATCHES / mesh.sizes.dp)
    for gradient in list_gradients(model)[1:]:
        mesh.groups.dp.all_reduce(gradient)
    return loss


def reduce_in_bucket(model: nn.Module, mesh: ParityMesh, reduced: slice, offset: int) -> None:
    """Average the slice `reduced` of a bucket (1-D) of all gradients, and copy the bucket to the gradients.

    `offset` is the index of the first element to copy; 0 is right.
    """
    bucket = torch.cat([gradient.flatten() for gradient in list_gradients(model)])
    part = bucket[reduced].clone()
    mesh.groups.dp.all_reduce(part)
    bucket[reduced] = part / mesh.sizes.dp
    first = offset
    for gradient in list_gradients(model):
        copied = bucket[first : first + gradient.numel()]
        gradient.view(-1)[: len(copied)] = copied
        first += gradient.numel()


def bucket_ends_early(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Omit the last element of the bucket from the average."""
    loss = accumulate(model, batch)
    reduce_in_bucket(model, mesh, slice(0, -1), 0)
    return loss


def bucket_read_at_offset(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Copy the gradients from the bucket with an offset of one element."""
    loss = accumulate(model, batch)
    reduce_in_bucket(model, mesh, slice(None), 1)
    return loss


def accumulated_twice(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Add the gradients of the batch twice."""
    accumulate(model, batch)
    loss = accumulate(model, batch)
    average(model, mesh)
    return loss


def one_layer_twice(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Double the gradients of one layer."""
    loss = accumulate(model, batch)
    average(model, mesh)
    for parameter in model[2].parameters():
        parameter.grad *= 2
    return loss


def samples_of_rank_0(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Use the samples of rank 0 on all ranks."""
    loss = accumulate(model, [mesh.comm.broadcast(x.clone()) for x in batch])
    average(model, mesh)
    return loss


def last_microbatch_only(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Reset the gradients before each micro-batch."""
    for x, y in zip(*(each.chunk(MICROBATCHES) for each in batch), strict=True):
        model.zero_grad()
        (compute_loss(model, x, y) / MICROBATCHES).backward()
    average(model, mesh)
    return float(compute_loss(model, *batch).detach())


def swapped_gradients(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Exchange the gradients of two biases; the model is a `Residual`."""
    loss = accumulate(model, batch)
    average(model, mesh)
    first, second = model.first.bias, model.branch.bias
    first.grad, second.grad = second.grad, first.grad
    return loss


def average_of_means(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Average the ranks' mean gradients with equal weights, although the ranks have different numbers of samples."""
    loss = compute_loss(model, *batch)
    loss.backward()
    average(model, mesh)
    return float(loss.detach())


def same_random_numbers(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Use the same random numbers, such as dropout masks, on all ranks."""
    torch.manual_seed(7)
    loss = accumulate(model, batch)
    average(model, mesh)
    return loss


class Persistent:
    """A step that keeps its gradients: the next step adds them to its own or, if `late`, uses them instead."""

    def __init__(self, late: bool) -> None:
        self.late, self.kept = late, {}  # type: ignore[var-annotated]

    def __call__(self, model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
        loss = accumulate(model, batch)
        average(model, mesh)
        for name, parameter in model.named_parameters():
            own = parameter.grad.clone()
            if name in self.kept:
                parameter.grad = self.kept[name].clone() if self.late else self.kept[name] + own
            self.kept[name] = own
        return loss


class KeptInput(torch.autograd.Function):  # type: ignore[misc]
    """A linear layer that keeps its input outside of autograd, where a later call overwrites it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
        ctx.weight, ctx.kept = weight, kept
        kept[:] = [x]
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient @ ctx.weight, gradient.T @ ctx.kept[0], None


def stale_activations(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Run all forward passes, then all backward passes, but keep the last layer's input of one pass only."""
    kept: list[torch.Tensor] = []
    losses = []
    for x, y in zip(*(each.chunk(MICROBATCHES) for each in batch), strict=True):
        hidden = model[1](model[0](x))
        out = KeptInput.apply(hidden, model[2].weight, kept) + model[2].bias
        losses.append(F.mse_loss(out, y) / MICROBATCHES)
    for loss in losses:
        loss.backward()
    average(model, mesh)
    return float(sum(losses).detach())


class Residual(nn.Module):  # type: ignore[misc]
    """A residual block with a registered buffer; if `detached`, its branch is detached from autograd.

    Computes y + branch(tanh(y)) for y = scale * first(x).
    """

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.first, self.branch, self.detached = nn.Linear(INPUTS, OUTPUTS), nn.Linear(OUTPUTS, OUTPUTS), detached
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block."""
        hidden = self.scale * self.first(x)
        branch = self.branch(torch.tanh(hidden))
        return hidden + (branch.detach() if self.detached else branch)


def right_step(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Make a step without a fault."""
    loss = accumulate(model, batch)
    average(model, mesh)
    return loss


def detach_branch(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    """Detach the branch of a `Residual`, so that its parameters get no gradient; return the model."""
    model.detached = True
    return model


def differ_in_initial_values(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    """Initialise the last layer differently on each rank; return the model."""
    torch.manual_seed(mesh.comm.rank + 5)
    model[2].reset_parameters()
    return model


def differ_in_buffers(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    """Make the buffer `scale` of a `Residual` different on each rank; return the model."""
    model.scale += mesh.comm.rank
    return model


DP_FAULTS = {
    "scaled by micro-batches": ("factor_microbatches", plant_in_dp(scaled_by_microbatches)),
    "averaged instead of summed": ("factor_inverse_dp", plant_in_dp(averaged_instead_of_summed)),
    "loss not scaled by dp": ("factor_dp", plant_in_dp(loss_without_scale)),
    "no all_reduce": ("missing_average_dp", plant_in_dp(no_reduction)),
    "one bucket too few": ("missing_sum_dp", plant_in_dp(one_bucket_too_few)),
    "bucket ends early": ("bucket_boundary", plant_in_dp(bucket_ends_early)),
    "bucket read late": ("bucket_offset", plant_in_dp(bucket_read_at_offset)),
    "one layer accumulated twice": ("factor_twice", plant_in_dp(one_layer_twice)),
    "samples of rank 0": ("same_samples", plant_in_dp(samples_of_rank_0)),
    "last micro-batch only": ("missing_microbatches", plant_in_dp(last_microbatch_only)),
    "stale activation": ("stale_activation", plant_in_dp(stale_activations)),
    "shared dropout seed": (
        "shared_random_numbers",
        plant_in_dp(same_random_numbers, model=lambda: make_mlp(nn.Dropout(0.5))),
    ),
    "swapped gradients": ("other_parameter", plant_in_dp(swapped_gradients, model=lambda: Residual().double())),
    "average of means": ("mean_of_means", plant_in_dp(average_of_means, batch=lambda: make_batch(13))),
    "not zeroed": ("not_zeroed", plant_in_dp(Persistent(late=False))),
    "gradient of the step before": ("previous_step", plant_in_dp(Persistent(late=True))),
    "detached branch": (
        "no_gradient",
        plant_in_dp(right_step, model=lambda: Residual().double(), wrap=lambda: detach_branch),
    ),
    "own initial values": ("initial_parameters", plant_in_dp(right_step, wrap=lambda: differ_in_initial_values)),
    "unsynchronized buffers": (
        "unsynchronized_buffers",
        plant_in_dp(right_step, model=lambda: Residual().double(), wrap=lambda: differ_in_buffers),
    ),
}
