"""Floating-point operations (FLOPs) of a training step.

A product of (m, k) and (k, n) matrices takes m k n multiplications and as many additions: 2 FLOPs per weight and token.
The backward pass computes two products for each one of the forward pass (the gradients of input and weight), so it
takes twice the FLOPs. `transformer_shape` has the FLOPs of a layer.

Causal masks are ignored, as in the published formula: attention counts all s keys, although half of the scores are
masked on average. A step of B samples of s tokens takes 72 B L s h^2 (1 + s/(6h) + V/(12hL)) FLOPs in a GPT of L layers
with h features and a vocabulary of V tokens: Narayanan et al., SC 2021, arXiv 2104.04473, appendix, without the
recomputation; also Korthikanti et al., arXiv 2205.05198, appendix A. For selective recomputation, Korthikanti and
others state s/(6h) more FLOPs (2.7 % for GPT-3); this module counts a third of them, because a backward pass repeats
only the 4 s h FLOPs per token of attention's forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpccoll.parallel.mesh import Mesh
from hpccoll.sizing.rank_parts import list_rank_parts
from hpccoll.sizing.training_setup import TrainingSetup


@dataclass(frozen=True, slots=True)
class Flops:
    """The FLOPs of a forward pass, and of the part of it that the backward pass repeats to recompute activations."""

    forward: float
    recomputed: float

    @property
    def backward(self) -> float:
        """The FLOPs of the backward pass, without recomputation: twice those of the forward pass."""
        return 2 * self.forward

    @property
    def model(self) -> float:
        """The FLOPs without recomputation, from which model FLOPs utilisation (MFU) is computed."""
        return self.forward + self.backward


def count_step_flops(setup: TrainingSetup) -> Flops:
    """Return the `Flops` of a training step over all ranks, as if one rank computed the whole step."""
    alone = replace(setup, mesh=Mesh(), microbatches=1, schedule="1f1b", sequence_parallel=False, routing=None)
    return count_pass_flops(alone, 0)


def count_pass_flops(setup: TrainingSetup, rank: int | None = None) -> Flops:
    """Return the `Flops` of a rank for one micro-batch of its pipeline stages.

    `rank` is the index of the rank along pp; None stands for the slowest rank, which most often has the output layer.
    """
    if rank is None:
        slowest = (count_pass_flops(setup, rank) for rank in setup.compared_ranks)
        return max(slowest, key=lambda flops: flops.forward)
    parts = list_rank_parts(setup, rank)
    return Flops(
        sum(part.count * part.forward_flops for part in parts),
        sum(part.count * part.recomputed_flops for part in parts),
    )


def count_causal_core_flops(setup: TrainingSetup) -> float:
    """Return a rank's forward FLOPs for one micro-batch in scores and weighted values of attention.

    The masked half of the scores is left out.
    """
    layers = setup.layers_per_stage * setup.pipeline.stages_per_rank
    return layers * setup.model.count_attention_core_flops(setup.sequence) / 2 * setup.tokens / setup.mesh.tp
