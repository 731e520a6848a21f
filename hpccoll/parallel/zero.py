"""ZeRO: the replicas of a parameter split the training state among themselves instead of each keeping all of it.

Each of n ranks keeps 1/n of the optimizer's state (ZeRO-1), or 1/n of this state and of the gradients (ZeRO-2), or 1/n
of this state, the gradients and the parameters (ZeRO-3). The parameters of a part of the model, such as a layer or a
block, are joined to one flat tensor (a unit), padded to a multiple of n elements. The shard of rank r is the r-th of n
equal parts of the unit, and may begin and end inside a parameter. One collective moves a whole unit, and the optimizer
updates one tensor per unit. The optimizer must be elementwise, such as SGD or Adam.

| | ZeRO-1 | ZeRO-2 | ZeRO-3 |
|---|---|---|---|
| forward pass | | | all_gather of each unit during the computation of the part before; freed after use |
| backward pass | | | the same, in the opposite order |
| gradients of a unit are complete | reduce_scatter after the last pass | reduce_scatter in each pass | like ZeRO-2 |
| after the optimizer | all_gather of all units | all_gather of all units | |

Shapes: p elements of a unit including padding, n ranks.

Sources: Rajbhandari et al., ZeRO, SC 2020 (arXiv 1910.02054); Zhao et al., PyTorch FSDP, VLDB 2023 (arXiv 2304.11277),
which flattens the parameters of a unit in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.parallel.data_parallel import ShardPiece, note_backward_pass

if TYPE_CHECKING:
    from hpccoll.runtime.work import Work


class ZeroUnit:
    """Parameters as one flat tensor of p elements, of which each of the n ranks of `group` owns a shard.

    The constructor is collective over `group`.

    Attributes:
        shard: this rank's p/n elements, a leaf tensor; `shard.grad` is the shard of the gradient.
        whole: the p elements of all ranks; None while ZeRO-3 has freed them.
    """

    def __init__(self, parameters: Sequence[Any], group: AxisGroup, level: int) -> None:
        self.parameters, self.group, self.level = list(parameters), group, level
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]
        self.length = -(-sum(self._sizes) // group.size)  # elements of a shard
        self.missing: dict[Any, int] = {}  # by parameter, the number of backward passes still to add to its gradient
        self.reductions = 0  # reduce_scatters since the start of the step
        self.work: Work[Any] | None = None  # the all_gather or (ZeRO-1) the reduce_scatter in flight
        self.whole: Any = None
        values = [parameter.detach() for parameter in parameters]
        memory = self._make_memory(values)
        memory.copy_(self.cut(values))
        self.shard = memory.detach().requires_grad_()
        # ZeRO-1 keeps the gradients of the whole unit, and reduces this rank's shard of them in place.
        self.gradients = group.empty(self.count, memory).zero_() if level == 1 else None
        self.shard.grad = torch.zeros_like(memory) if level > 1 else self._take_own(self.gradients)
        views = self.split(self.gradients) if level == 1 else []
        self.gradient_views = dict(zip(parameters, views, strict=False))

    def _make_memory(self, values: Sequence[Any]) -> Any:
        """Return memory for the shard; with ZeRO-1 and 2, it is a part of `whole`, into which `values` are copied."""
        if self.level == 3:
            return self.group.empty(self.length, values[0])
        whole = self.group.empty(self.count, values[0])
        whole.copy_(self._flatten(values))
        self.install(whole)
        return self._take_own(whole)

    @property
    def count(self) -> int:
        """The number p of elements of the unit, including padding."""
        return int(self.length * self.group.size)

    def split(self, flat: Any) -> list[Any]:
        """Return a flat tensor of the unit's p elements as one view per parameter."""
        *parts, _ = flat.split([*self._sizes, self.count - sum(self._sizes)])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def cut(self, tensors: Sequence[Any]) -> Any:
        """Return this rank's shard (p/n elements) of tensors in the shapes of the parameters, as a copy."""
        return self._take_own(self._flatten(tensors)).clone()

    def list_pieces(self) -> Iterator[ShardPiece]:
        """Yield a piece for each parameter with elements in this rank's shard."""
        first, begin = self.length * self.group.index, 0
        for parameter, size in zip(self.parameters, self._sizes, strict=True):
            low, high = max(begin - first, 0), min(begin + size - first, self.length)
            if low < high:
                yield ShardPiece(parameter, first + low - begin, low, high - low)
            begin += size

    def install(self, whole: Any) -> None:
        """Make the parameters views of `whole`, a flat tensor of the unit's p elements."""
        self.whole = whole
        for parameter, view in zip(self.parameters, self.split(whole), strict=True):
            parameter.data = view

    def release(self) -> Any:
        """Return the whole tensor after detaching the parameters, which keep their shapes, but no values."""
        whole, self.whole = self.whole, None
        for parameter, shape in zip(self.parameters, self._shapes, strict=True):
            parameter.data = parameter.data.new_empty(()).expand(shape)
        return whole

    def move_gradients(self, flat: Any) -> None:
        """Move the parameters' gradients to `flat` (p elements), with zeros for those that no pass has used."""
        for parameter, view in zip(self.parameters, self.split(flat), strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = None
        flat[sum(self._sizes) :].zero_()

    def finish(self) -> None:
        """Block until the collective in flight for this unit is complete; does nothing if there is none."""
        if self.work is not None:
            self.group.finish(self.work)
            self.work = None

    def _flatten(self, tensors: Sequence[Any]) -> Any:
        """Return tensors in the shapes of the parameters as one flat tensor, padded with zeros to `count` elements."""
        padding = tensors[0].new_zeros(self.count - sum(self._sizes))
        return torch.cat([*(x.reshape(-1) for x in tensors), padding])

    def _take_own(self, whole: Any) -> Any:
        """Return a view of this rank's shard of the unit's flat tensor."""
        first = self.length * self.group.index
        return whole[first : first + self.length]


class _ReductionSlot:
    """A buffer in which ZeRO-2 and ZeRO-3 reduce the gradients of a group's units, one unit at a time."""

    def __init__(self, units: Sequence[ZeroUnit]) -> None:
        self.group, like = units[0].group, units[0].shard
        self.buffer = self.group.empty(max(unit.count for unit in units), like)
        self.addend = like.detach().new_empty(0)  # sums of a pass after the first one, added to `shard.grad`
        self._addend_length = max(unit.length for unit in units)
        self._unit: ZeroUnit | None = None
        self._work: Work[Any] | None = None

    def start(self, unit: ZeroUnit) -> None:
        """Block until the slot is free, then start to reduce a unit's gradients into `shard.grad`; collective."""
        self.finish()
        whole = self.buffer[: unit.count]
        unit.move_gradients(whole)
        if unit.reductions and not len(self.addend):
            self.addend = self.addend.new_empty(self._addend_length)
        out = self.addend[: unit.length] if unit.reductions else unit.shard.grad
        self._unit, self._work = unit, self.group.start_reduce_scatter(whole, out)
        unit.reductions += 1

    def finish(self) -> None:
        """Block until the reduction in flight is complete; does nothing if there is none."""
        if self._unit is None or self._work is None:
            return
        self.group.finish(self._work)
        if self._unit.reductions > 1:
            self._unit.shard.grad += self.addend[: self._unit.length]
        self._unit = self._work = None


class ZeroShards:
    """The ZeRO shards of a rank's parameters; gathers parameters and reduces gradients during a training step.

    A step calls `begin`, runs its passes by `run`, and calls `finish`. After `finish`, the `grad` of each tensor of
    `shards` is the sum over the ranks. After an optimizer has updated `shards`, `gather_parameters` completes the step.

    The constructor is collective over the groups. On CPUs, shards and unreduced gradients are symmetric buffers, which
    the ranks of a node read in place. All ranks of a group must run the same passes.

    Args:
        stages: by pipeline stage of this rank, the parameters of each part, in the order of the forward pass.
        groups: by parameter, the group of ranks that hold it.
        level: 1, 2 or 3.
        alone: parameters that get a unit to themselves.
    """

    def __init__(
        self,
        stages: Mapping[int, Sequence[Sequence[Any]]],
        groups: Mapping[Any, AxisGroup],
        level: int,
        alone: AbstractSet[Any] = frozenset(),
    ) -> None:
        self.level, self.parameters = level, list(groups)
        self._unit_of: dict[Any, ZeroUnit] = {}
        self.units: list[ZeroUnit] = []
        for part in (part for parts in stages.values() for part in parts):
            self._add_units(part, groups, alone)
        self._parts = {
            stage: [list(dict.fromkeys(self._unit_of[x] for x in part)) for part in parts]
            for stage, parts in stages.items()
        }
        by_group: dict[AxisGroup, list[ZeroUnit]] = defaultdict(list)
        for unit in self.units:
            by_group[unit.group].append(unit)
        self._groups = list(by_group)
        self._slots = {group: _ReductionSlot(own) for group, own in by_group.items() if own[0].level > 1}
        self._free: dict[int, list[Any]] = defaultdict(list)  # unused tensors for gathered units, by length
        self._by_memory: dict[int, ZeroUnit] = {}  # gathered units, by the address of their tensor
        self._keeps_whole = False
        for unit in self.units:
            if unit.level == 3:
                unit.release()

    def _add_units(self, part: Sequence[Any], groups: Mapping[Any, AxisGroup], alone: AbstractSet[Any]) -> None:
        """Make one unit per group of ranks from those of `part`'s parameters that are in no unit yet; collective."""
        members: dict[Any, list[Any]] = defaultdict(list)
        for parameter in part:
            if parameter not in self._unit_of:
                members[parameter if parameter in alone else groups[parameter]].append(parameter)
        for parameters in members.values():
            group = groups[parameters[0]]
            # Parameters without replicas, such as experts that one rank holds, are kept whole.
            unit = ZeroUnit(parameters, group, self.level if group.size > 1 else 1)
            self.units.append(unit)
            for parameter in parameters:
                self._unit_of[parameter] = unit
                parameter.register_post_accumulate_grad_hook(partial(self._note_gradient, unit))

    @property
    def shards(self) -> list[Any]:
        """The tensors that the optimizer updates, one per unit."""
        return [unit.shard for unit in self.units]

    @property
    def weights(self) -> list[Any]:
        """The tensors that hold the parameters between steps, one per unit."""
        return [unit.shard if unit.level == 3 else unit.whole for unit in self.units]

    @property
    def buffers(self) -> list[Any]:
        """The tensors that hold gathered parameters and unreduced gradients, between steps."""
        slots = [x for slot in self._slots.values() for x in (slot.buffer, slot.addend)]
        return [*slots, *(x for tensors in self._free.values() for x in tensors)]

    def get_gradient(self, parameter: Any) -> Any:
        """Return the gradient of the shard of a parameter that has a unit to itself (`alone`)."""
        return self._unit_of[parameter].shard.grad

    def begin(self, passes: Mapping[Any, int]) -> None:
        """Start a training step: forget the gradients of the last step; local.

        `passes` has, for each parameter, the number of backward passes of this step that add to its gradient.
        """
        for unit in self.units:
            unit.reductions = 0
            unit.missing = {x: passes[x] if unit.level == 1 else 1 for x in unit.parameters}
            for parameter in unit.parameters:
                parameter.grad = None

    def run(self, stage: int, number: int, function: Callable[[Any], Any], x: Any) -> Any:
        """Run part `number` of a stage: return function(x) with the part's parameters gathered; collective.

        ZeRO-3 gathers the part's parameters for the forward and the backward pass. While the part computes, the
        parameters of the next part are gathered. Afterwards, parameters that no later part of the stage uses are freed.
        """
        if self.level < 3:
            return function(x)
        parts = self._parts[stage]
        self._gather(parts[number : number + 2])
        # After the pass, other parameters reuse the memory that a saved view of a parameter would refer to.
        with saved_tensors_hooks(self._pack, self._unpack) if torch.is_grad_enabled() else nullcontext():
            y = function(x)
        used_again = {unit for part in parts[number + 1 :] for unit in part}
        for unit in parts[number]:
            if unit not in used_again:
                self._release(unit)
        if y.requires_grad:
            y.register_hook(lambda _: self._gather(parts[max(number - 1, 0) : number + 1][::-1]))
        return y

    def finish(self) -> None:
        """Reduce the gradients that no backward pass has begun to reduce, and block until all are reduced; collective.

        Cost: let s be (n-1)/n of the bytes of the parameters. In a step of m micro-batches, a rank sends gradients of s
        bytes with ZeRO-1, and of m s bytes with ZeRO-2 and 3. A rank sends parameters of s bytes in `gather_parameters`
        with ZeRO-1 and 2, and of 2 m s bytes in `run` with ZeRO-3.
        """
        for unit in self.units:
            if not unit.reductions or any(x.grad is not None for x in unit.parameters if unit.level > 1):
                self._start_reduction(unit)
        for unit in self.units:
            unit.finish()
        for slot in self._slots.values():
            slot.finish()

    def gather_parameters(self) -> None:
        """Gather the updated parameters of all ranks, unless ZeRO-3 gathers them in `run`; collective."""
        for unit in self.units:
            if unit.level < 3 and unit.group.size > 1:
                unit.work = unit.group.start_all_gather(unit.shard.detach(), unit.whole)
        for unit in self.units:
            unit.finish()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Context manager in whose body all parameters are whole, also with ZeRO-3; collective.

        If the body raises an exception, ZeRO-3 frees the gathered parameters as well.
        """
        self._gather([self.units] if self.level == 3 else [])
        self._keeps_whole = True
        try:
            yield
        finally:
            self._keeps_whole = False
            for unit in self.units if self.level == 3 else []:
                self._release(unit)

    def gather_tensors(self, own: Sequence[Any]) -> list[Any]:
        """Return all ranks' `own` (in the shapes of `shards`) as tensors in the parameters' shapes; collective."""
        tensors: dict[Any, Any] = {}
        for unit, shard in zip(self.units, own, strict=True):
            whole = unit.group.all_gather(shard.detach(), (unit.length,) * unit.group.size)
            tensors |= zip(unit.parameters, unit.split(whole), strict=True)
        return [tensors[parameter] for parameter in self.parameters]

    def cut_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the shards of `tensors`, which have the shapes of the parameters: one tensor for each unit. Local."""
        by_parameter = dict(zip(self.parameters, tensors, strict=True))
        return [unit.cut([by_parameter[x] for x in unit.parameters]) for unit in self.units]

    def list_gradients(self) -> Iterator[tuple[Any, Any]]:
        """Yield each parameter with elements in this rank's shards, and the gradient of these elements (1-D)."""
        for unit in self.units:
            for parameter, _, offset, count in unit.list_pieces():
                yield parameter, unit.shard.grad[offset : offset + count]

    def list_pieces(self) -> Iterator[ShardPiece]:
        """Yield the pieces of parameters in this rank's shards, with offsets in the flat tensor of all shards."""
        before = 0
        for unit in self.units:
            for parameter, begin, offset, count in unit.list_pieces():
                yield ShardPiece(parameter, begin, before + offset, count)
            before += unit.length

    def _note_gradient(self, unit: ZeroUnit, parameter: Any) -> None:
        """Record that a backward pass has added to a gradient; start reducing a unit whose gradients are complete."""
        note_backward_pass(parameter, unit.missing, unit.gradient_views.get(parameter))
        for group in self._groups:
            group.advance_started()
        if not unit.missing:
            self._start_reduction(unit)

    def _start_reduction(self, unit: ZeroUnit) -> None:
        """Start the reduce_scatter of a unit's gradients; ZeRO-3 frees the unit's parameters. Collective."""
        if unit.level == 1:
            unit.reductions += 1
            unit.move_gradients(unit.gradients)
            if unit.group.size > 1:
                unit.work = unit.group.start_reduce_scatter(unit.gradients, unit.shard.grad)
            return
        self._slots[unit.group].start(unit)
        unit.missing = dict.fromkeys(unit.parameters, 1)
        self._release(unit)

    def _gather(self, parts: Sequence[Sequence[ZeroUnit]]) -> None:
        """Start to gather the units of several parts of the model; block until the first part's units are complete.

        Collective.
        """
        for unit in (unit for part in parts for unit in part if unit.whole is None):
            free = self._free[unit.count]
            whole = free.pop() if free else unit.shard.detach().new_empty(unit.count)
            unit.work = unit.group.start_all_gather(unit.shard.detach(), whole)
            unit.install(whole)
            self._by_memory[whole.data_ptr()] = unit
        for unit in parts[0] if parts else []:
            unit.finish()

    def _release(self, unit: ZeroUnit) -> None:
        """Free the gathered parameters of a unit, if it is sharded as ZeRO-3; keep the memory for the next gather."""
        if unit.level == 3 and unit.whole is not None and not self._keeps_whole:
            unit.finish()
            whole = unit.release()
            del self._by_memory[whole.data_ptr()]
            self._free[unit.count].append(whole)

    def _pack(self, x: Any) -> Any:
        """Return the object that autograd saves in place of a tensor for the backward pass.

        For a view of gathered parameters, the object is their unit and the view's size, strides and offset, so that
        the parameters can be freed and gathered again. For any other tensor, the object is the tensor, detached.
        """
        unit = self._by_memory.get(x.untyped_storage().data_ptr())
        if unit is None:
            return x.detach() if x.requires_grad else x
        return unit, x.size(), x.stride(), x.storage_offset()

    def _unpack(self, packed: Any) -> Any:
        """Return the tensor that `_pack` replaced, whose unit must have been gathered again."""
        if isinstance(packed, torch.Tensor):
            return packed
        unit, *place = packed
        return unit.whole.as_strided(*place)
