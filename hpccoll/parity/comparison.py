"""Compare the tensors of all ranks with those of one process, step by step, and keep a record of each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from hpccoll.parallel.mesh import Mesh, split_evenly
from hpccoll.parity.diagnosis import choose_fault, diagnose
from hpccoll.parity.fault import UNKNOWN, ComparedTensor, Fault, FoundShard, format_shard_ranks
from hpccoll.parity.reference import ReferenceRun
from hpccoll.parity.shard_location import ShardIndex
from hpccoll.parity.wrapped import GRADIENT, VALUE, WrappedRun
from hpccoll.records import ParityRecord, ParitySummaryRecord, Quantity

# For bfloat16 and float16, the tolerance of relative differences is 16 times the epsilon of the dtype.
TOLERANCES: Mapping[Any, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 16 * torch.finfo(torch.bfloat16).eps,
    torch.float16: 16 * torch.finfo(torch.float16).eps,
}
SAFE_NOISE = 8  # accepted difference, as a multiple of the measured rounding error
INITIAL = (
    "not those of the whole model: broadcast the initial parameters, or initialise the whole model with one seed on "
    "each rank and then slice it"
)
BUFFERS = "not those of the whole model: broadcast the buffers before the first step"
MISSING = Fault("missing_shards", "no rank holds some elements of the parameter")
BEFORE_UPDATE = ("loss", "gradient", "gradient norm")  # quantities of a step before the parameters are updated


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """The options of a comparison of a mesh with one process: SGD steps, learning rate, tolerance and seed."""

    steps: int = 3  # SGD steps
    lr: float = 0.1  # learning rate of SGD
    tolerance: float | None = None  # accepted relative difference; None: that of the parameters' dtype in TOLERANCES
    seed: int = 0  # seed of the random numbers of the model, the batch and dropout


class RankLoss(NamedTuple):
    """A rank's loss in one training step, and the seed of its random numbers."""

    sampler: int  # index of the rank's part of the batch
    loss: float | None  # mean over the samples of the rank's part; None if the rank does not compute the loss
    seed: int  # the last seed of torch's random numbers


class MeshComparison:
    """Compares training on one mesh of ranks with training in one process, and keeps a record of each tensor.

    Methods that take a WrappedRun (this rank's training on the mesh) are collective over the mesh; the others are for
    rank 0. `reference` is the training in one process on rank 0; None on other ranks.
    """

    def __init__(self, sizes: Mesh, options: ParityOptions, reference: ReferenceRun | None) -> None:
        self.sizes, self.options, self.reference = sizes, options, reference
        self.records: dict[tuple[str, str], ParityRecord] = {}  # by quantity and name
        self.first: ParityRecord | None = None
        self.fault: tuple[str, Fault] | None = None  # the tensor that shows the fault, and the fault
        self._drift: dict[str, float] = {}  # per parameter: sum over steps of lr times the gradient's bound

    def compare_initial(self, wrapped: WrappedRun) -> None:
        """Compare the model's parameters and buffers before the first training step. Collective."""
        parameters = _gather(wrapped, wrapped.names, lambda name: wrapped.get_shard(name, VALUE))
        buffers = _gather(wrapped, wrapped.buffer_names, wrapped.get_buffer)
        if self.reference is None:
            return
        own = dict(self.reference.model.named_buffers())
        for name, shards in parameters.items():
            expected = self.reference.parameters[name].detach().cpu().double()
            tensor = ComparedTensor(name, expected, shards, 0.0)
            fault = Fault(
                "initial_parameters", f"the initial values on {format_shard_ranks(tensor.differing)} are {INITIAL}"
            )
            self._add_tensor("initial parameter", tensor, fault if tensor.is_complete else MISSING)
        for name, shards in buffers.items():
            tensor = ComparedTensor(name, own[name].cpu().double(), shards, 0.0)
            if shards:
                fault = Fault(
                    "unsynchronized_buffers", f"the buffers on {format_shard_ranks(tensor.differing)} are {BUFFERS}"
                )
                self._add_tensor("buffer", tensor, fault)

    def compare_step(self, wrapped: WrappedRun) -> None:
        """Run one training step and compare its loss, gradients and gradient norm. Collective.

        If loss, gradients and norm agree, update the parameters and compare the new parameters, too.
        """
        loss = wrapped.compute()
        losses = wrapped.mesh.comm.gather_object(RankLoss(wrapped.mesh.sampler, loss, torch.initial_seed()))
        gradients = _gather(wrapped, wrapped.names, lambda name: wrapped.get_shard(name, GRADIENT))
        if self.reference is not None and losses is not None:
            self._compare_gradients(self.reference, losses, gradients)
        if wrapped.mesh.comm.broadcast_object(self.is_wrong):
            return
        wrapped.apply(self.options.lr)
        parameters = _gather(wrapped, wrapped.names, lambda name: wrapped.get_shard(name, VALUE))
        if self.reference is not None:
            self.reference.apply(self.options.lr)
            tolerance = self.choose_tolerance(self.reference)
            for name, shards in parameters.items():
                expected = self.reference.parameters[name].detach().cpu().double()
                bound = tolerance * float(expected.abs().max()) + self._drift.get(name, 0.0)
                self._add_tensor("parameter", ComparedTensor(name, expected, shards, bound), UNKNOWN)

    @property
    def is_wrong(self) -> bool:
        """Whether any tensor compared so far differs; always false on ranks other than 0."""
        return self.first is not None

    def choose_tolerance(self, reference: ReferenceRun) -> float:
        """Return the tolerance relative to a tensor's largest magnitude: the user's, or the default of the dtype."""
        if self.options.tolerance is not None:
            return self.options.tolerance
        dtypes = {x.dtype for x in reference.parameters.values()}
        return max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)

    def _compare_gradients(
        self, reference: ReferenceRun, losses: list[RankLoss], gradients: Mapping[str, list[FoundShard]]
    ) -> None:
        """Compare the loss, gradients and gradient norm of a step on rank 0, and find the fault if gradients differ.

        Args:
            reference: the training in one process, whose step is computed here.
            gradients: for each parameter's name, the shards of its gradient on all ranks.
        """
        expected_loss = reference.compute({loss.sampler: loss.seed for loss in losses})
        noise_of_loss, noise = reference.measure_noise(expected_loss)
        expected = {name: x.cpu().double() for name, x in reference.gradients.items()}
        tolerance = self.choose_tolerance(reference)
        floor = tolerance * max(float(x.abs().max()) for x in expected.values())
        tensors = {}
        for name, x in expected.items():
            bound = max(tolerance * float(x.abs().max()), min(SAFE_NOISE * noise[name], floor))
            tensors[name] = ComparedTensor(name, x, gradients[name], bound)
            self._drift[name] = self._drift.get(name, 0.0) + self.options.lr * bound
        wrong = [name for name, tensor in tensors.items() if not is_equal(tensor)]
        tensors = {name: replace(tensor, is_only_some=len(wrong) < len(tensors)) for name, tensor in tensors.items()}
        faults = diagnose(reference, tensors, wrong) if wrong else {}
        seen_at, fault = choose_fault(wrong, faults) if wrong else ("", UNKNOWN)
        for name, tensor in tensors.items():
            self._add_tensor("gradient", tensor, faults.get(name, UNKNOWN))
        bound = max(tolerance * abs(expected_loss), SAFE_NOISE * noise_of_loss)
        self._add_number("loss", expected_loss, _average_loss(reference, losses), bound, fault)
        norm, found_norm = _get_norm(expected.values()), _get_norm(tensor.assemble() for tensor in tensors.values())
        self._add_number("gradient norm", norm, found_norm, tolerance * norm, fault)
        if wrong:
            self.fault = seen_at, fault

    def _add_number(self, quantity: Quantity, expected: float, found: float, bound: float, fault: Fault) -> None:
        """Compare a number, such as the loss, and keep its record.

        Args:
            expected: the number in one process.
            found: the number on the mesh.
            bound: the largest absolute difference that rounding explains.
            fault: the likely fault to record if the numbers differ.
        """
        shards = [FoundShard(0, ShardIndex(), torch.tensor([found], dtype=torch.float64))]
        expected_tensor = torch.tensor([expected], dtype=torch.float64)
        self._add_tensor(quantity, ComparedTensor(quantity, expected_tensor, shards, bound), fault)

    def _add_tensor(self, quantity: Quantity, tensor: ComparedTensor, fault: Fault) -> None:
        """Compare a tensor; keep its record, unless an earlier step had a larger error. Keep the first wrong tensor.

        `fault` is the likely fault to record if the tensor differs.
        """
        steps_done = self.reference.step if self.reference is not None else 0
        right = is_equal(tensor)
        record = ParityRecord(
            name=tensor.name,
            mesh=str(self.sizes),
            quantity=quantity,
            step=steps_done + (quantity in BEFORE_UPDATE),
            relative_error=tensor.error if math.isfinite(tensor.error) else None,
            tolerance=tensor.bound / tensor.largest,
            fault=None if right else fault.kind,
            explanation=None if right else fault.text,
        )
        earlier = self.records.get((quantity, tensor.name))
        if earlier is None or not right or (earlier.relative_error or 0.0) <= (record.relative_error or 0.0):
            self.records[quantity, tensor.name] = record
        if not right and self.first is None:
            self.first, self.fault = record, (tensor.name, fault)

    def summarize(self) -> ParitySummaryRecord:
        """Return the record `parity_summary` of all comparisons, with the first wrong tensor and its fault."""
        # A gradient that is zero except for rounding has no meaningful relative error.
        errors = [record.relative_error for record in self.records.values() if record.tolerance < 1]
        return ParitySummaryRecord(
            mesh=str(self.sizes),
            ranks=self.sizes.ranks,
            tensors=len(self.records),
            wrong=sum(record.fault is not None for record in self.records.values()),
            max_error=None if None in errors else max(error for error in errors if error is not None),
            first=self.first.name if self.first else None,
            quantity=self.first.quantity if self.first else None,
            step=self.first.step if self.first else None,
            first_error=self.first.relative_error if self.first else None,
            fault=self.fault[1].kind if self.fault else None,
            explanation=self.fault[1].text if self.fault else None,
            seen_at=self.fault[0] if self.fault else None,
        )


def is_equal(tensor: ComparedTensor) -> bool:
    """Whether the ranks together have all elements of a tensor, and no element differs by more than `tensor.bound`."""
    return tensor.is_complete and not tensor.differing


def _gather(
    wrapped: WrappedRun, names: list[str], get: Callable[[str], FoundShard | None]
) -> dict[str, list[FoundShard]]:
    """Gather the shards of named tensors from all ranks on rank 0. Collective over the mesh.

    Args:
        names: the names of the tensors, the same on all ranks.
        get: returns this rank's shard of the tensor with the given name, or None if the rank has no such shard.

    Returns, on rank 0, the shards of all ranks by name; an empty dictionary on other ranks.
    """
    gathered = wrapped.mesh.comm.gather_object([get(name) for name in names])
    if gathered is None:
        return {}
    by_name = zip(*gathered, strict=True)
    return {name: [shard for shard in shards if shard is not None] for name, shards in zip(names, by_name, strict=True)}


def _average_loss(reference: ReferenceRun, losses: list[RankLoss]) -> float:
    """Return the mean loss over all samples, from the ranks' mean losses over their parts of the batch.

    The result is NaN if there is a part of the batch whose loss no rank has.
    """
    total = 0.0
    for sampler, own in enumerate(split_evenly(reference.case.samples, reference.sizes.samplers)):
        known = [loss.loss for loss in losses if loss.sampler == sampler and loss.loss is not None]
        if not known:
            return math.nan
        total += sum(known) / len(known) * (own.stop - own.start) / reference.case.samples
    return total


def _get_norm(gradients: Iterable[Any]) -> float:
    """Return the Euclidean norm of all elements of all gradients together."""
    return math.sqrt(sum(float(x.square().sum()) for x in gradients))
