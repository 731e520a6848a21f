"""Faults that are simulated in one process: each predicts the gradients that a rank of a faulty mesh would hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hpccoll.parallel.mesh import Mesh
from hpccoll.parity.fault import ComparedTensor
from hpccoll.parity.reference import Gradients, ReferenceRun, hook_forward

MAX_MODULES = 16  # modules for which a fault is simulated one by one
ComparedTensors = Mapping[str, ComparedTensor]  # by name


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """A mistake in a training step, and the gradients that the ranks of a mesh would hold because of it."""

    kind: str
    text: str
    gradients: Sequence[Gradients]  # a single element for all ranks, or one element per index along tp

    def explains(self, wrong: ComparedTensor, sizes: Mesh) -> bool:
        """Whether every rank with wrong values of the tensor `wrong` has the values that this fault predicts.

        `sizes` are the numbers of ranks along the mesh's axes.
        """
        if wrong.name not in self.gradients[0]:
            return False
        return wrong.matches(
            lambda rank: (
                self.gradients[sizes.get_coordinates(rank)["tp"] % len(self.gradients)][wrong.name].cpu().double()
            )
        )


def simulate_faults(run: ReferenceRun, tensors: ComparedTensors, wrong: Sequence[str]) -> Iterator[SimulatedFault]:
    """Yield faults that may explain the wrong gradients, one after the other, each simulated in one process."""
    yield from simulate_samples(run)
    if run.shared_seed is not None and run.is_random:
        shared = run.compute_gradients(run.list_parts(), seeds=[run.shared_seed] * run.sizes.samplers)[1]
        text = "the ranks of dp or ep draw the same random numbers: seed dropout differently on each of them"
        yield SimulatedFault("shared_random_numbers", text, [shared])
    yield from simulate_stale_activations(run, wrong)
    if run.sizes.tp > 1:
        yield from simulate_partial_backward(run, tensors)
        yield from simulate_row_faults(run, tensors)
        yield from simulate_vocabulary_offsets(run, tensors)


def simulate_samples(run: ReferenceRun) -> Iterator[SimulatedFault]:
    """Yield faults in the choice and the weights of samples, such as gradients of only one micro-batch."""
    sizes, parts = run.sizes, run.list_parts()
    own = [run.compute_gradients(run.list_parts([at]))[1] for at in range(sizes.samplers)]
    shares = [
        sum(part.stop - part.start for part, at in parts if at == sampler) / run.case.samples
        for sampler in range(sizes.samplers)
    ]
    for sampler in range(sizes.samplers if sizes.samplers > 1 else 0):
        text = f"every rank computes with the samples of part {sampler} of the batch"
        yield SimulatedFault("same_samples", text, [_scale(own[sampler], 1 / shares[sampler])])
    if len(set(shares)) > 1 or not _is_additive(run, own):
        mean = _add([_scale(x, 1 / share / sizes.samplers) for x, share in zip(own, shares, strict=True)])
        text = "it is the average of the ranks' mean losses, although the ranks have different numbers of samples"
        yield SimulatedFault("mean_of_means", text, [mean])
    count = run.case.microbatches
    for at in {0, count - 1} if count > 1 else ():
        chosen = run.compute_gradients([run.list_parts([sampler])[at] for sampler in range(sizes.samplers)])[1]
        for factor in (1.0, float(count)):
            text = f"only the {'last' if at else 'first'} micro-batch of each rank counts"
            yield SimulatedFault("missing_microbatches", text, [_scale(chosen, factor)])


def _is_additive(run: ReferenceRun, own: Sequence[Gradients]) -> bool:
    """Whether the gradients `own` of the parts, each weighted by its share of samples, sum to those of the batch.

    The gradients of the parts sum to those of the batch if the loss of a batch is the mean of its samples' losses.
    Differences of up to 0.1 % of the largest gradient are accepted.
    """
    added = _add(own)
    largest = max(float(x.abs().max()) for x in run.gradients.values())
    return all(float((added[name] - x).abs().max()) <= 1e-3 * largest for name, x in run.gradients.items())


def _scale(gradients: Gradients, factor: float) -> Gradients:
    """Return all gradients multiplied by a factor, by name."""
    return {name: x * factor for name, x in gradients.items()}


def _add(addends: Sequence[Gradients]) -> Gradients:
    """Return the sum of several sets of gradients, by name."""
    return {name: sum(x[name] for x in addends) for name in addends[0]}


def simulate_stale_activations(run: ReferenceRun, wrong: Sequence[str]) -> Iterator[SimulatedFault]:
    """Yield faults in which the backward pass of a module uses the input of another micro-batch or step.

    `wrong` are the names of wrong gradients, whose modules are tried.
    """
    modules = {name.rpartition(".")[0]: run.find_module(name) for name in [*wrong[-MAX_MODULES:], wrong[0]]}
    records = _record_calls(run, modules)
    before = (
        _record_calls(run.previous, {at: run.previous.model.get_submodule(at) for at in modules})
        if run.previous
        else {}
    )
    count = run.case.microbatches
    orders: dict[str, tuple[Callable[[int], int], Mapping[str, list[Any]]]] = {}
    if count > 1:
        orders = {
            "of the micro-batch before": (lambda at: (at - 1) % count, records),
            "of the micro-batch after": (lambda at: (at + 1) % count, records),
            "of the last micro-batch": (lambda _: count - 1, records),
            "of the first micro-batch": (lambda _: 0, records),
        }
    if before:
        orders["of the step before"] = (lambda at: at, before)
    for name, module in modules.items():
        if len(records[name]) != len(run.list_parts()):
            continue  # the module is called several times per micro-batch
        for words, (order, source) in orders.items():
            pairs = [
                (source[name][at - at % count + order(at % count)][0], gradient)
                for at, (_, gradient) in enumerate(records[name])
            ]
            text = f"the backward pass of {name or 'the model'} uses the input {words}: a stale activation"
            predicted = _backpropagate(module, name, pairs)
            yield SimulatedFault("stale_activation", text, [predicted])


def _record_calls(run: ReferenceRun, modules: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Run the step, and return each module's calls by the module's name.

    A module has one call per micro-batch: a list of the module's inputs and the gradient of its output.
    """
    records: dict[str, list[Any]] = {name: [] for name in modules}

    def make_hook(name: str) -> Callable[..., None]:
        """Return a forward hook that records the calls of the module `name`."""

        def hook(_: Any, inputs: Any, output: Any) -> None:
            """Record the inputs of a call and, in the backward pass, the gradient of its output."""
            if isinstance(output, torch.Tensor) and output.requires_grad:
                call = [tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in inputs), None]
                records[name].append(call)
                output.register_hook(lambda gradient: call.__setitem__(1, gradient))

        return hook

    run.compute_gradients(run.list_parts(), hook_forward({module: make_hook(name) for name, module in modules.items()}))
    return records


def _backpropagate(module: Any, name: str, pairs: Sequence[tuple[Any, Any]]) -> Gradients:
    """Return the gradients of a module's parameters, summed over `pairs` of its inputs and its output's gradient.

    Gradients are returned by the parameter's name in the whole model, in which the module has the name `name`. The
    result is empty if the shapes of an output and of its gradient differ.
    """
    parameters = dict(module.named_parameters())
    total = {parameter: torch.zeros_like(x) for parameter, x in parameters.items()}
    for inputs, gradient in pairs:
        output = module(*inputs)
        if gradient is None or output.shape != gradient.shape:
            return {}
        gradients = torch.autograd.grad(output, list(parameters.values()), gradient, allow_unused=True)
        for parameter, x in zip(total, gradients, strict=True):
            total[parameter] += 0 if x is None else x
    return {f"{name}.{parameter}" if name else parameter: x for parameter, x in total.items()}


def _list_rows_by_tp(tensors: ComparedTensors, sizes: Mesh, dim: int) -> dict[str, dict[int, Any]]:
    """Return the rows or columns that each rank of tp has of each matrix that is split over tp along `dim`.

    `result[name][tp]` has the indices along dimension `dim` of the matrix `name` that the rank with index `tp` has.
    """
    by_name: dict[str, dict[int, Any]] = {}
    for name, tensor in tensors.items():
        rows = {
            sizes.get_coordinates(shard.rank)["tp"]: shard.index.rows
            for shard in tensor.shards
            if shard.index.dim == dim
        }
        if len(rows) == sizes.tp and tensor.expected.dim() == 2:
            by_name[name] = rows
    return by_name


def _choose_layers(run: ReferenceRun, names: Iterable[str]) -> list[list[str]]:
    """Return the sets of linear layers in which to simulate a fault: each layer alone, then all together.

    Layers are given and returned by the names of their weights; weights of other modules are left out.
    """
    linear = [name for name in names if isinstance(run.find_module(name), torch.nn.Linear)]
    return [*([name] for name in linear[:MAX_MODULES]), *([linear] if len(linear) > 1 else [])]


def _format_layers(chosen: Sequence[str]) -> str:
    """Return a description of the layers with the weights `chosen`: `layers.0`, or `each layer like layers.0`."""
    return chosen[0].rpartition(".")[0] if len(chosen) == 1 else f"each layer like {chosen[0].rpartition('.')[0]}"


def simulate_partial_backward(run: ReferenceRun, tensors: ComparedTensors) -> Iterator[SimulatedFault]:
    """Yield faults of column-parallel layers: the gradient of the layer's input is not summed over tp."""
    split = _list_rows_by_tp(tensors, run.sizes, dim=0)
    for chosen in _choose_layers(run, split):
        by_tp = []
        for tp in range(run.sizes.tp):
            hooks = {run.find_module(name): _keep_columns(split[name][tp]) for name in chosen}
            by_tp.append(run.compute_gradients(changes=hook_forward(hooks))[1])
        text = f"the gradient of the input of {_format_layers(chosen)} is not summed over tp in the backward pass"
        yield SimulatedFault("missing_backward_sum_tp", text, by_tp)


def _keep_columns(rows: Any) -> Callable[..., Any]:
    """Return a forward hook for a module that lets gradients through only for the output features `rows`."""

    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        """Return the output, detached from autograd except for the features `rows`."""
        mask = torch.zeros(output.shape[-1], dtype=torch.bool, device=output.device)
        mask[rows] = True
        return torch.where(mask, output, output.detach())

    return hook


def simulate_row_faults(run: ReferenceRun, tensors: ComparedTensors) -> Iterator[SimulatedFault]:
    """Yield faults of row-parallel layers: no sum over tp, or a bias that each rank adds before the sum."""
    split = _list_rows_by_tp(tensors, run.sizes, dim=1)
    for chosen in _choose_layers(run, split):
        modules = {name: run.find_module(name) for name in chosen}
        hooks = [{modules[name]: _keep_inputs(split[name][tp]) for name in chosen} for tp in range(run.sizes.tp)]
        text = f"the output of {_format_layers(chosen)} is not summed over tp in the forward pass"
        by_tp = [run.compute_gradients(changes=hook_forward(hook))[1] for hook in hooks]
        yield SimulatedFault("missing_forward_sum_tp", text, by_tp)
        biased = [module for module in modules.values() if module.bias is not None]
        adding = {module: _add_to_output((run.sizes.tp - 1) * module.bias.detach()) for module in biased}
        text = f"each rank of tp adds the bias of {_format_layers(chosen)}, which counts it {run.sizes.tp} times"
        yield SimulatedFault("bias_per_rank", text, [run.compute_gradients(changes=hook_forward(adding))[1]])


def _add_to_output(extra: Any) -> Callable[..., Any]:
    """Return a forward hook for a module that adds the tensor `extra` to the module's output."""
    return lambda _module, _inputs, output: output + extra


def _keep_inputs(rows: Any) -> Callable[..., Any]:
    """Return a forward hook for a linear layer that computes the output from the input features `rows` only."""
    return lambda module, inputs, _: torch.nn.functional.linear(
        inputs[0][..., rows], module.weight[:, rows], module.bias
    )


class _ShiftedVocabulary(TorchFunctionMode):  # type: ignore[misc] # torch has no types here
    """Context manager that simulates a vocabulary split over tp, in which ranks assume a wrong first token.

    Within the context, torch looks up embeddings, or the logits of targets, as ranks with a wrong first token do.

    Args:
        shards: for each rank of tp, its true first token, its number of tokens, and the first token that it assumes.
        patched: the function of torch.nn.functional to change, `embedding` or `cross_entropy`.
    """

    def __init__(self, shards: Sequence[tuple[int, int, int]], patched: Any) -> None:
        super().__init__()
        self.shards, self.patched = shards, patched

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        vocabulary = sum(count for _, count, _ in self.shards)
        if function is torch.nn.functional.embedding is self.patched and len(args[1]) == vocabulary:
            return self._sum_shards(args[0], lambda rows: args[1][rows])
        if function is not self.patched or args[0].dim() != 2 or args[0].shape[1] != vocabulary:
            return function(*args, **(kwargs or {}))
        logits, targets = args[:2]
        chosen = self._sum_shards(targets, lambda rows: logits.gather(1, rows[:, None]).squeeze(1))
        return (logits.logsumexp(1) - chosen).mean()

    def _sum_shards(self, tokens: Any, look_up: Callable[[Any], Any]) -> Any:
        """Return the sum over the ranks of tp of the values that each rank looks up for its own tokens, 0 for others.

        `look_up` returns the values of tokens, such as embeddings.
        """
        total: Any = 0
        for true, count, assumed in self.shards:
            inside = (tokens >= assumed) & (tokens < assumed + count)
            embedded = look_up(torch.where(inside, tokens - assumed + true, true))
            total = total + torch.where(
                inside.reshape(inside.shape + (1,) * (embedded.dim() - inside.dim())), embedded, 0
            )
        return total


def simulate_vocabulary_offsets(run: ReferenceRun, tensors: ComparedTensors) -> Iterator[SimulatedFault]:
    """Yield faults in which ranks of tp assume a wrong first token of their shard of a vocabulary."""
    for name, rows in _list_rows_by_tp(tensors, run.sizes, dim=0).items():
        true = [(int(rows[tp][0]), len(rows[tp])) for tp in range(run.sizes.tp)]
        for (what, patched), (words, change) in product(_LOOK_UPS.items(), _OFFSETS.items()):
            shards = [(first, count, change(first)) for first, count in true]
            gradients = run.compute_gradients(changes=_ShiftedVocabulary(shards, patched))[1]
            text = f"ranks of tp look up {what} in {name} {words}"
            yield SimulatedFault("vocabulary_offset", text, [gradients])


_LOOK_UPS: Mapping[str, Any] = {
    "embeddings": torch.nn.functional.embedding,
    "target logits": torch.nn.functional.cross_entropy,
}
_OFFSETS: Mapping[str, Callable[[int], int]] = {
    "as if every shard began with token 0": lambda _: 0,
    "one token too late": lambda first: first + 1,
    "one token too early": lambda first: first - 1,
}
