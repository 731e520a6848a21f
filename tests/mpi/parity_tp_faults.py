"""Plants faults in tensor- and pipeline-parallel steps of small models; see parity_faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that users of torch know

from hpccoll.parity import ParityCase, ParityMesh
from tests.mpi.parity_faults import Batch, compute_loss, make_batch

WIDTH, HIDDEN, OUTPUTS, VOCABULARY = 6, 8, 5, 12


class Reduce(torch.autograd.Function):  # type: ignore[misc]
    """Sums over the axis tp in the forward or in the backward pass, or in both or none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: ParityMesh, forward: bool, backward: bool) -> torch.Tensor:
        ctx.mesh, ctx.backward_too = mesh, backward
        return mesh.groups.tp.all_reduce(x.clone()) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        summed = ctx.mesh.groups.tp.all_reduce(gradient.contiguous().clone()) if ctx.backward_too else gradient
        return summed, None, None, None


class Gather(torch.autograd.Function):  # type: ignore[misc]
    """Concatenates the features of all ranks of tp; `sums` chooses between the two backward passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: ParityMesh, sums: bool) -> torch.Tensor:
        ctx.mesh, ctx.sums, count = mesh, sums, x.shape[-1]
        whole = x.new_zeros(*x.shape[:-1], count * mesh.sizes.tp)
        ctx.own = slice(mesh.coordinates["tp"] * count, (mesh.coordinates["tp"] + 1) * count)
        whole[..., ctx.own] = x
        return mesh.groups.tp.all_reduce(whole)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = ctx.mesh.groups.tp.all_reduce(gradient.contiguous().clone()) if ctx.sums else gradient
        return whole[..., ctx.own], None, None


class Block(nn.Module):  # type: ignore[misc]
    """A layer split by output and one split by input, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.copy: Callable[..., Any] = lambda x: x
        self.reduce: Callable[..., Any] | None = None
        self.adds_bias_first = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of input and layers."""
        hidden = torch.tanh(self.up(self.copy(x)))
        if self.reduce is None:
            return x + self.down(hidden)
        if self.adds_bias_first:
            return x + self.reduce(self.down(hidden))
        return x + self.reduce(hidden @ self.down.weight.T) + self.down.bias


def shard(linear: nn.Linear, dim: int, index: int, count: int) -> None:
    """Keep one shard of a linear layer, split by output (0) or by input (1)."""
    linear.weight = nn.Parameter(linear.weight.detach().chunk(count, dim)[index].clone())
    if dim == 0 and linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.detach().chunk(count)[index].clone())


def split_blocks(
    model: nn.Module,
    mesh: ParityMesh,
    copies: Sequence[bool] = (True, True),
    reduces: bool = True,
    adds_bias_first: bool = False,
    swaps: bool = False,
) -> nn.Module:
    """Split the blocks over tp; the arguments other than model and mesh plant faults."""
    index, count = mesh.coordinates["tp"], mesh.sizes.tp
    for block, copy in zip((x for x in model if isinstance(x, Block)), copies, strict=True):
        shard(block.up, 0, (index + swaps) % count, count)
        shard(block.down, 1, index, count)
        block.copy = lambda x, copy=copy: Reduce.apply(x, mesh, False, copy)
        block.reduce = lambda x: Reduce.apply(x, mesh, reduces, False)
        block.adds_bias_first = adds_bias_first
    return model


def make_blocks() -> nn.Module:
    """Return two blocks between a first and a last layer, which are replicated."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), Block(), nn.Linear(WIDTH, OUTPUTS)).double()


def plant_in_blocks(**fault: Any) -> Callable[[], ParityCase]:
    """Return the function that builds a model of two blocks with a fault."""
    return lambda: ParityCase(make_blocks(), make_batch(), compute_loss, partial(split_blocks, **fault))


class Gathered(nn.Module):  # type: ignore[misc]
    """Two layers split by output, the outputs of the first of which are gathered, and a last one that is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, OUTPUTS)
        self.gathers: list[Callable[..., Any]] = [lambda x: x, lambda x: x]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        hidden = self.gathers[0](torch.tanh(self.first(x)))
        return self.last(self.gathers[1](torch.tanh(self.second(hidden))))


def split_gathered(model: Any, mesh: ParityMesh, sums: Sequence[bool]) -> nn.Module:
    """Split two layers by output; the right backward passes of the gathers sum first, and do not sum then."""
    for layer in (model.first, model.second):
        shard(layer, 0, mesh.coordinates["tp"], mesh.sizes.tp)
    model.gathers = [lambda x, each=each: Gather.apply(x, mesh, each) for each in sums]
    return model


def plant_in_gathers(*sums: bool) -> Callable[[], ParityCase]:
    """Return the function that builds a model with all-gathers."""
    return lambda: ParityCase(Gathered().double(), make_batch(), compute_loss, partial(split_gathered, sums=sums))


class Language(nn.Module):  # type: ignore[misc]
    """An embedding and a head over a vocabulary, with a layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.between = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.mesh: ParityMesh | None = None
        self.offsets = (0, 0)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy, from shards of the vocabulary if there is a mesh."""
        if self.mesh is None:
            return F.cross_entropy(self.head(torch.tanh(self.between(self.embedding(tokens)))), targets)
        first = self.mesh.coordinates["tp"] * len(self.head.weight)
        found = look_up(
            tokens, first + self.offsets[0], len(self.head.weight), lambda rows: self.embedding.weight[rows]
        )
        hidden = torch.tanh(self.between(Reduce.apply(found, self.mesh, True, False)))
        logits = self.head(Reduce.apply(hidden, self.mesh, False, True))
        total = Reduce.apply(logits.exp().sum(1), self.mesh, True, False)
        found = look_up(
            targets, first + self.offsets[1], logits.shape[1], lambda rows: logits.gather(1, rows[:, None]).squeeze(1)
        )
        return (total.log() - Reduce.apply(found, self.mesh, True, False)).mean()


def look_up(tokens: torch.Tensor, first: int, count: int, get: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return `get(token)` for the tokens first to first + count - 1, and zero for other tokens."""
    inside = (tokens >= first) & (tokens < first + count)
    found = get(torch.where(inside, tokens - first, 0))
    return found * (inside[:, None] if found.dim() > 1 else inside)


def split_language(model: Any, mesh: ParityMesh, offsets: tuple[int, int], ignores_rank: bool) -> nn.Module:
    """Split the vocabulary over tp; `offsets` and `ignores_rank` plant faults in embedding and cross entropy."""
    for layer in (model.embedding, model.head):
        layer.weight = nn.Parameter(layer.weight.detach().chunk(mesh.sizes.tp)[mesh.coordinates["tp"]].clone())
    first = mesh.coordinates["tp"] * len(model.head.weight) if ignores_rank else 0
    model.mesh, model.offsets = mesh, (offsets[0] - first, offsets[1])
    return model


def plant_in_vocabulary(offsets: tuple[int, int], ignores_rank: bool = False) -> Callable[[], ParityCase]:
    """Return the function that builds a language model whose shards of the vocabulary begin at wrong tokens."""

    def build() -> ParityCase:
        tokens, targets = torch.randint(VOCABULARY, (2, 16))
        wrap = partial(split_language, offsets=offsets, ignores_rank=ignores_rank)
        return ParityCase(Language().double(), (tokens, targets), lambda model, *batch: model(*batch), wrap)

    return build


class RowsPerRank(nn.Module):  # type: ignore[misc]
    """A layer whose replicated bias each rank of tp adds to its own rows of the batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)
        self.mesh: ParityMesh | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output; on a mesh, each rank computes its own rows, and the outputs are gathered."""
        rows = x if self.mesh is None else x.chunk(self.mesh.sizes.tp)[self.mesh.coordinates["tp"]]
        found = self.last(torch.tanh(self.first(rows)))
        return found if self.mesh is None else Gather.apply(found.T, self.mesh, False).T


def split_rows(model: Any, mesh: ParityMesh) -> nn.Module:
    model.mesh = mesh
    return model


def no_sum_of_replicas(model: nn.Module, batch: Batch, mesh: ParityMesh) -> float:
    """Each rank has computed a part of the rows; the sum of the replicated layers' gradients over tp is missing."""
    loss = compute_loss(model, *batch)
    loss.backward()
    for name, parameter in model.named_parameters():
        if name != "last.bias":
            mesh.groups.tp.all_reduce(parameter.grad)
    return float(loss.detach())


def tied_without_sum(model: Any, batch: Batch, mesh: ParityMesh) -> float | None:
    """Backpropagate two stages that share a weight without adding its gradients."""
    pp, (x, y) = mesh.groups.pp, batch
    if pp.index == 0:
        hidden = x @ model.weight.T
        pp.start_send(hidden.detach(), 1, 1)
        hidden.backward(pp.wait(pp.start_recv(torch.empty_like(hidden), 1, 2)))
        pp.finish_sends()
        return None
    hidden = pp.wait(pp.start_recv(x.new_empty(len(x), WIDTH), 0, 1)).requires_grad_()
    loss = F.mse_loss(torch.tanh(hidden) @ model.weight.T, y)
    loss.backward()
    pp.start_send(hidden.grad, 0, 2)
    pp.finish_sends()
    return float(loss.detach())


class Tied(nn.Module):  # type: ignore[misc]
    """Two layers with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the second layer."""
        return torch.tanh(x @ self.weight.T) @ self.weight.T


def plant_tied() -> ParityCase:
    x, y = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    return ParityCase(Tied().double(), (x, y), compute_loss, lambda model, _: model, tied_without_sum)


TP_FAULTS = {
    "no sum in backward pass": ("missing_backward_sum_tp", plant_in_blocks(copies=(False, False))),
    "no sum in backward pass of one block": ("missing_backward_sum_tp", plant_in_blocks(copies=(True, False))),
    "no sum in forward pass": ("missing_forward_sum_tp", plant_in_blocks(reduces=False)),
    "bias added on each rank": ("bias_per_rank", plant_in_blocks(adds_bias_first=True)),
    "swapped shards": ("swapped_shards", plant_in_blocks(swaps=True)),
    "all_gather: reduce-scatter instead of split": ("factor_tp", plant_in_gathers(True, True)),
    "all_gather: split instead of reduce-scatter": ("missing_backward_sum_tp", plant_in_gathers(False, False)),
    "replicated bias without sum": (
        "missing_sum_tp",
        lambda: ParityCase(RowsPerRank().double(), make_batch(), compute_loss, split_rows, no_sum_of_replicas),
    ),
    "vocabulary one token too late": ("vocabulary_offset", plant_in_vocabulary((1, 0))),
    "vocabulary without the rank": ("vocabulary_offset", plant_in_vocabulary((0, 0), ignores_rank=True)),
    "targets one token too early": ("vocabulary_offset", plant_in_vocabulary((0, -1))),
}
PP_FAULTS = {"tied weight without sum": ("missing_sum_pp", plant_tied)}
