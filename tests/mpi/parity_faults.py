"""Plants faults in data-parallel training steps of small models; see `test_parity`."""

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
    """Return the mean square loss."""
    return F.mse_loss(model(x), y)


def make_batch(samples: int = SAMPLES) -> Batch:
    """Return inputs and targets."""
    return torch.randn(samples, INPUTS, dtype=torch.float64), torch.randn(samples, OUTPUTS, dtype=torch.float64)


def make_mlp(between: nn.Module | None = None) -> nn.Module:
    """Return two layers with a function between them."""
    layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), between or nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))
    return layers.double()


def list_gradients(model: nn.Module) -> list[torch.Tensor]:
    """Return all gradients."""
    return [x.grad for x in model.parameters() if x.grad is not None]


def accumulate(model: nn.Module, batch: Batch, scale: float = 1 / MICROBATCHES) -> float:
    """Add the gradients of all micro-batches times `scale`; return the mean loss."""
    total = 0.0
    for x, y in zip(*(each.chunk(MICROBATCHES) for each in batch), strict=True):
        loss = compute_loss(model, x, y)
        (loss * scale).backward()
        total += float(loss.detach()) / MICROBATCHES
    return total


def average(model: nn.Module, mesh: ParityMesh) -> None:
    """Average all gradients over dp."""
    for gradient in list_gradients(model):
        mesh.groups.dp.all_reduce(gradient).div_(mesh.sizes.dp)


def keep(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    """Return the model itself, because `backward` communicates."""
    return model


def plant_in_dp(backward: Callable[[nn.Module, Batch, ParityMesh], Any], **changes: Any) -> Callable[[], ParityCase]:
    """Return the function that builds an MLP with a faulty data-parallel step."""

    def build() -> ParityCase:
        case = ParityCase(make_mlp(), make_batch(), compute_loss, keep, backward, MICROBATCHES)
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
    """Leave the first gradient out of the sum over dp."""
    loss = accumulate(model, batch, scale=1 / MICROBATCHES / mesh.sizes.dp)
    for gradient in list_gradients(model)[1:]:
        mesh.groups.dp.all_reduce(gradient)
    return loss


def reduce_in_bucket(model: nn.Module, mesh: ParityMesh, reduced: slice, offset: int) -> None:
    """Average a slice of the bucket of all gradients, and copy them back from `offset` positions later."""
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
    """Leave the last element of the bucket out of the average."""
    loss = accumulate(model, batch)
    reduce_in_bucket(model, mesh, slice(0, -1), 0)
    return loss


def bucket_read_late(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Copy the gradients back from one position too late in the bucket."""
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
    """Exchange the gradients of two parameters."""
    loss = accumulate(model, batch)
    average(model, mesh)
    first, second = model.first.bias, model.branch.bias
    first.grad, second.grad = second.grad, first.grad
    return loss


def average_of_means(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Average the means of parts of different sizes."""
    loss = compute_loss(model, *batch)
    loss.backward()
    average(model, mesh)
    return float(loss.detach())


def same_random_numbers(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Use the same random numbers on all ranks."""
    torch.manual_seed(7)
    loss = accumulate(model, batch)
    average(model, mesh)
    return loss


class Persistent:
    """Steps whose gradients stay in buffers of their own between steps."""

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
    """All forward passes, then all backward passes, with one place for the input of the last layer."""
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
    """A layer beside a branch, which may be detached from autograd, and a buffer."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.first, self.branch, self.detached = nn.Linear(INPUTS, OUTPUTS), nn.Linear(OUTPUTS, OUTPUTS), detached
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of layer and branch."""
        hidden = self.scale * self.first(x)
        branch = self.branch(torch.tanh(hidden))
        return hidden + (branch.detach() if self.detached else branch)


def right_step(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    loss = accumulate(model, batch)
    average(model, mesh)
    return loss


def detach_branch(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    model.detached = True
    return model


def own_initial_values(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    torch.manual_seed(mesh.comm.rank + 5)
    model[2].reset_parameters()
    return model


def own_buffers(model: nn.Module, mesh: ParityMesh) -> nn.Module:
    model.scale += mesh.comm.rank
    return model


DP_FAULTS = {
    "scaled by micro-batches": ("factor_microbatches", plant_in_dp(scaled_by_microbatches)),
    "averaged instead of summed": ("factor_inverse_dp", plant_in_dp(averaged_instead_of_summed)),
    "loss not scaled by dp": ("factor_dp", plant_in_dp(loss_without_scale)),
    "no all_reduce": ("missing_average_dp", plant_in_dp(no_reduction)),
    "one bucket too few": ("missing_sum_dp", plant_in_dp(one_bucket_too_few)),
    "bucket ends early": ("bucket_boundary", plant_in_dp(bucket_ends_early)),
    "bucket read late": ("bucket_offset", plant_in_dp(bucket_read_late)),
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
    "own initial values": ("initial_parameters", plant_in_dp(right_step, wrap=lambda: own_initial_values)),
    "unsynchronized buffers": (
        "unsynchronized_buffers",
        plant_in_dp(right_step, model=lambda: Residual().double(), wrap=lambda: own_buffers),
    ),
}
