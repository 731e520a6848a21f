"""The base classes of the trained models: a model with its shards, and the layers of a rank's pipeline stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from hpccoll.parallel.axis_group import MeshGroups
from hpccoll.parallel.mesh import Mesh
from hpccoll.parallel.pipeline_parallel import PipelineStage
from hpccoll.parallel.weight_gradients import WeightProduct
from hpccoll.train.options import ModelConfig
from hpccoll.train.samples import Samples
from hpccoll.train.shards import ParameterShard, copy_shards

ConfigT = TypeVar("ConfigT", bound=ModelConfig)


class TrainedModel(ABC, Generic[ConfigT]):
    """A model as torch trains it: its samples, its parameters, their shards on the ranks of a mesh, and its loss."""

    rank_layers: ClassVar[type[RankLayers[Any]]]  # the layers of a rank's pipeline stages

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    @abstractmethod
    def load_samples(self) -> tuple[Samples, Samples]:
        """Return the training samples and the held-out samples of the model."""

    @abstractmethod
    def list_shards(self, mesh: Mesh, rank: int) -> list[ParameterShard]:
        """Return the names and slices of a rank's parameter shards, stage by stage, in the model's order."""

    def list_full_parameters(self) -> list[ParameterShard]:
        """Return the names and shapes of all parameters, as the shards of a mesh of one rank."""
        return self.list_shards(Mesh(), 0)

    def list_tied_ranks(self, mesh: Mesh, rank: int) -> list[int]:  # noqa: ARG002 - for models that tie weights
        """Return `rank` and the other ranks with its shard of a weight that two stages share; [] if there are none."""
        return []

    def init_parameters(self, seed: int, dtype: Any) -> dict[str, Any]:
        """Return the full initial parameters by name, drawn with `seed` and converted to `dtype`.

        The parameters depend only on the arguments, so the model is the same on every mesh if each rank calls this
        method and keeps its own shards.
        """
        return self._draw_parameters(torch.Generator().manual_seed(seed), dtype)

    @abstractmethod
    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the loss of the unsplit model's output y; local."""

    @abstractmethod
    def sum_single_process_loss(self, full: Mapping[str, Any], x: Any, targets: Any, cp: int) -> Any:
        """Return the sum over samples of the loss of the unsplit model, the reference for the gradient check; local.

        `full` has all parameters by name, `x` the inputs. The loss of a mixture of experts includes its load-balancing
        losses. A mixture of experts routes the tokens in `cp` groups, one per context-parallel rank.
        """

    @abstractmethod
    def _draw_parameters(self, generator: Any, dtype: Any) -> dict[str, Any]:
        """Return the full initial parameters by name, drawn in float64 from `generator` and converted to `dtype`."""


@dataclass(frozen=True, slots=True)
class StagePart:
    """Consecutive layers of a pipeline stage, whose parameters ZeRO-3 gathers together."""

    names: Sequence[str]  # names of the parameters that the layers use
    run: Callable[[Any], Any]  # returns the output of the layers for an input; collective over tp
    can_recompute: bool = True  # whether the option `recompute` applies to the layers


class RankLayers(ABC, Generic[ConfigT]):
    """The layers of a rank's pipeline stages, with this rank's parameter shards.

    The shards are copied from `full` to `device` as leaf tensors. Forward and backward passes are collective over `tp`.

    Args:
        batch: the number of samples of a step, over all ranks.
        deferred: the list to which backward passes append the computation of the weights' gradients (`apply_linear`);
            None if they compute the gradients at once.
        recompute: whether backward passes compute activations again instead of keeping them.
        sequence_parallel: whether ranks of tp split the tokens between tensor-parallel layers; GPT only.
    """

    def __init__(
        self,
        model: TrainedModel[ConfigT],
        mesh: Mesh,
        rank: int,
        groups: MeshGroups,
        full: Mapping[str, Any],
        device: Any,
        *,
        batch: int,
        deferred: list[WeightProduct] | None,
        recompute: bool,
        sequence_parallel: bool,
    ) -> None:
        self.model, self.config = model, model.config
        self.mesh, self.rank, self.groups, self.tp = mesh, rank, groups, groups.tp
        self.batch, self.deferred, self.recompute = batch, deferred, recompute
        self.sequence_parallel = sequence_parallel
        self.routed: list[Any] = []  # kept choices of each expert, by forward pass of a mixture of experts
        self.shards = model.list_shards(mesh, rank)
        self.parameters = [x.requires_grad_() for x in copy_shards(self.shards, full, device)]
        self._by_name = {shard.name: x for shard, x in zip(self.shards, self.parameters, strict=True)}
        # `run_part` runs a part; its arguments are the numbers of stage and part, the function to run, and its input.
        # `run_part` is set before the first pass.
        self.run_part: Callable[[int, int, Callable[[Any], Any], Any], Any]
        self.parts = {stage: self._list_parts(stage) for stage in mesh.list_stages(rank)}
        self.stages = {stage: self._make_stage(stage) for stage in self.parts}

    @property
    def tied_weight(self) -> Any:
        """The weight that layers of the first and the last stage share; None if there is none."""
        return None

    @abstractmethod
    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the loss of y, this rank's output of the last stage; collective over tp."""

    @abstractmethod
    def _list_parts(self, stage: int) -> list[StagePart]:
        """Return the parts of stage number `stage`, in the order of the forward pass."""

    @abstractmethod
    def _get_input_shape(self, stage: int) -> tuple[int, ...]:
        """Return the shape, per sample, of the input of stage number `stage` on this rank."""

    def list_parameters(self) -> dict[int, list[list[Any]]]:
        """Return, by stage of this rank, the parameters of each part that ZeRO-3 gathers at once, such as a block."""
        return {
            stage: [[self._by_name[name] for name in part.names] for part in parts]
            for stage, parts in self.parts.items()
        }

    def _make_stage(self, stage: int) -> PipelineStage:
        """Return the pipeline stage with the number `stage`."""
        names = dict.fromkeys(name for part in self.parts[stage] for name in part.names)
        parameters = [self._by_name[name] for name in names]
        return PipelineStage(partial(self._run_stage, stage), self._get_input_shape(stage), parameters, self.deferred)

    def _run_stage(self, stage: int, x: Any) -> Any:
        """Return the output of a stage on this rank; collective over tp.

        With the option `recompute`, the forward pass keeps only the input of each part. The backward pass runs the part
        again, with its collectives, to compute the activations.
        Stages draw no random numbers, so recomputation does not restore the state of the random number generator.
        """
        for number, part in enumerate(self.parts[stage]):
            run = part.run
            if self.recompute and part.can_recompute:
                run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
            x = self.run_part(stage, number, run, x)
        return x
