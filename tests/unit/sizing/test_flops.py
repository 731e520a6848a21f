"""FLOPs against Megatron-LM's published formula."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpccoll.parallel import Mesh
from hpccoll.sizing import TrainingSetup, TransformerShape, load_preset
from hpccoll.sizing.flops import count_pass_flops, count_step_flops

GPT3 = TrainingSetup(load_preset("gpt3-175b"), Mesh(), 1536, 2048, 1536)


def test_a_step_agrees_with_the_formula_of_megatron():
    """Narayanan et al., arXiv 2104.04473: 96 B s L h^2 (1 + s/(6h) + V/(16Lh)), with full recomputation."""
    formula = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 50257 / (16 * 96 * 12288))
    flops = count_step_flops(replace(GPT3, recompute="full"))
    assert flops.model + flops.recomputed == pytest.approx(formula, rel=1e-9)


def test_selective_recomputation_repeats_the_two_products_of_the_core_of_attention():
    """By hand: B L products of (s, h) and (h, s), and of (s, s) and (s, h), with 2 s s h FLOPs each."""
    flops = count_step_flops(replace(GPT3, recompute="selective"))
    assert flops.recomputed == 1536 * 96 * 2 * (2 * 2048 * 2048 * 12288)
    assert flops.recomputed / flops.model == pytest.approx(2048 / (18 * 12288), rel=0.05)


@pytest.mark.parametrize(
    ("layers", "width", "heads", "batch", "ranks", "seconds", "mfu"),
    [
        (48, 6144, 64, 4, 8, 1.10, 0.415),
        (96, 12288, 96, 64, 64, 13.75, 0.514),
        (105, 20480, 128, 280, 280, 37.83, 0.560),
        (128, 25600, 160, 512, 512, 71.49, 0.563),
        (105, 20480, 128, 8 * 280, 8 * 280, 39.15, 0.542),
    ],
)
def test_the_flops_of_a_step_give_the_published_utilisation(layers, width, heads, batch, ranks, seconds, mfu):
    """Korthikanti et al., arXiv 2205.05198, tables 3 and 5, and section 6.3: seconds per step on A100, 312 TFLOP/s."""
    model = TransformerShape(layers=layers, width=width, heads=heads, vocabulary=51200, context=2048)
    flops = count_step_flops(TrainingSetup(model, Mesh(), batch, 2048, 1))
    assert flops.model / (seconds * ranks * 312e12) == pytest.approx(mfu, rel=0.01)


def test_a_token_takes_6_flops_per_active_parameter_and_12_s_h_per_layer():
    """Kaplan et al., arXiv 2001.08361: 6 N; Mixtral's embedding is looked up, so it takes none."""
    model = load_preset("mixtral-8x7b")
    setup = TrainingSetup(model, Mesh(), 1, 4096, 1)
    expected = 6 * (12_879_925_248 - 32000 * 4096) + 12 * 32 * 4096 * 4096
    assert count_step_flops(setup).model / 4096 == pytest.approx(expected, rel=1e-4)


def test_the_gradients_take_twice_the_flops_of_the_forward_pass():
    flops = count_step_flops(GPT3)
    assert flops.backward == 2 * flops.forward
    assert flops.recomputed == 0


def test_the_ranks_of_a_mesh_share_a_step():
    """Without a pipeline, every rank computes the same: the step over the ranks and micro-batches."""
    setup = TrainingSetup(load_preset("llama-2-70b"), Mesh(tp=8, cp=2, dp=4), 64, 4096, 8, recompute="full")
    flops, own = count_step_flops(setup), count_pass_flops(setup)
    assert own.forward * 8 * setup.mesh.ranks == pytest.approx(flops.forward)
    assert own.recomputed * 8 * setup.mesh.ranks == pytest.approx(flops.recomputed)
    pipelined = replace(setup, mesh=Mesh(tp=8, pp=4, cp=2), microbatches=64)
    assert count_pass_flops(pipelined).recomputed == 20 * load_preset("llama-2-70b").count_layer_flops(4096) * 2048 / 8
