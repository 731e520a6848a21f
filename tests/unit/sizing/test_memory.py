"""Memory against the published tables of ZeRO and of Megatron-LM's activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpccoll.parallel import Mesh
from hpccoll.schedules import make_schedule
from hpccoll.sizing import Precision, TrainingSetup, TransformerShape, load_preset
from hpccoll.sizing.backward_moments import list_moments
from hpccoll.sizing.memory import (
    compute_buffer_bytes,
    compute_memory,
    compute_rank_memory,
    compute_state_bytes,
)
from hpccoll.sizing.parameters import count_parameters
from hpccoll.sizing.perceptron_parts import list_perceptron_parts
from hpccoll.sizing.perceptron_shape import LinearShape, PerceptronShape
from hpccoll.sizing.training_setup import TrainingProgram
from hpccoll.sizing.transformer_parts import LayerActivations, compute_layer_activations, list_transformer_parts

# Rajbhandari et al., ZeRO, arXiv 1910.02054 (version 3), table 1, all rows: GB per device, by parameters and degree of
# data parallelism, for the stages 1, 2 and 3.
ZERO_TABLE = {
    (7.5e9, 1): (120, 120, 120),
    (7.5e9, 4): (52.5, 41.3, 30),
    (7.5e9, 16): (35.6, 21.6, 7.5),
    (7.5e9, 64): (31.4, 16.6, 1.88),
    (7.5e9, 256): (30.4, 15.4, 0.47),
    (7.5e9, 1024): (30.1, 15.1, 0.12),
    (128e9, 1): (2048, 2048, 2048),
    (128e9, 4): (896, 704, 512),
    (128e9, 16): (608, 368, 128),
    (128e9, 64): (536, 284, 32),
    (128e9, 256): (518, 263, 8),
    (128e9, 1024): (513, 257, 2),
    (1e12, 1): (16000, 16000, 16000),
    (1e12, 4): (7000, 5500, 4000),
    (1e12, 16): (4750, 2875, 1000),
    (1e12, 64): (4187, 2218, 250),
    (1e12, 256): (4046, 2054, 62.5),
    (1e12, 1024): (4011, 2013, 15.6),
}
# Models with these numbers of parameters, within 1 %; the paper does not state their shapes.
ZERO_MODELS = {
    7.5e9: TransformerShape(layers=36, width=4096, heads=32),
    128e9: TransformerShape(layers=70, width=12288, heads=96),
    1e12: TransformerShape(layers=128, width=25600, heads=160),
}


def total_state(parameters: float, zero: int, replicas: int, precision: Precision | None = None) -> float:
    state = compute_state_bytes(parameters, zero, replicas, precision or Precision())
    return state.weights + state.gradients + state.optimizer


def estimate_state(parameters: float, zero: int, replicas: int) -> float:
    setup = TrainingSetup(ZERO_MODELS[parameters], Mesh(dp=replicas), replicas, 1024, 1, zero=zero)
    memory = compute_memory(setup)
    return memory.weights + memory.gradients + memory.optimizer


@pytest.mark.parametrize(("case", "published"), ZERO_TABLE.items())
def test_the_state_of_the_model_agrees_with_the_table_of_zero(case, published):
    parameters, replicas = case
    for zero, gb in enumerate(published, 1):
        assert total_state(parameters, zero, replicas) == pytest.approx(gb * 1e9, rel=0.05), zero
        assert estimate_state(parameters, zero, replicas) == pytest.approx(gb * 1e9, rel=0.05), zero


@pytest.mark.parametrize(("zero", "gb"), list(enumerate([120, 31.4, 16.6, 1.9])))
def test_the_state_of_the_model_agrees_with_the_figure_of_zero(zero, gb):
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5B parameters on 64 devices, without ZeRO and its stages."""
    assert estimate_state(7.5e9, zero, 64) == pytest.approx(gb * 1e9, rel=0.05)


@pytest.mark.parametrize(("zero", "parameters"), list(enumerate([2e9, 7.6e9, 14.4e9, 128e9])))
def test_the_largest_models_of_zero_fill_the_memory_of_a_device(zero, parameters):
    """Rajbhandari et al., arXiv 1910.02054, table 2: the largest models in theory on 64 devices of 32 GB."""
    assert total_state(parameters, zero, 64) == pytest.approx(32e9, rel=0.05)


def test_zero_2_shards_gradients_and_zero_3_weights():
    two, three = (compute_state_bytes(8, zero, 4, Precision()) for zero in (2, 3))
    assert (two.weights, two.gradients, two.optimizer) == (16, 4, 24)
    assert (three.weights, three.gradients) == (4, 4)


def test_precision_and_optimizer_decide_the_bytes_per_parameter():
    assert total_state(1, 0, 8) == 16
    assert total_state(1, 0, 1, Precision("bfloat16", "sgd")) == 2 + 2 + 4
    assert total_state(1, 0, 1, Precision("float32", "adam")) == 4 + 4 + 8
    assert total_state(1, 0, 1, Precision("float32", "sgd")) == 8


def keep_layer(setup: TrainingSetup) -> LayerActivations:
    assert isinstance(setup.model, TransformerShape)
    return compute_layer_activations(setup.model, setup)


def compute_kept(setup: TrainingSetup, rank: int) -> float:
    """Return the bytes of the activations of a rank when it keeps most of them."""
    return max(each.activations for each in list_moments(setup, rank))


# Korthikanti et al., arXiv 2205.05198, table 3, by the stated number of parameters: model, ranks along pp, samples
# per step, micro-batches. All models have 8 ranks for tp, 2048 tokens per sample and a vocabulary of 51200.
MEGATRON = {
    22e9: (TransformerShape(layers=48, width=6144, heads=64, vocabulary=51200, context=2048), 1, 4, 1),
    175e9: (TransformerShape(layers=96, width=12288, heads=96, vocabulary=51200, context=2048), 8, 64, 64),
    530e9: (TransformerShape(layers=105, width=20480, heads=128, vocabulary=51200, context=2048), 35, 280, 280),
    1e12: (TransformerShape(layers=128, width=25600, heads=160, vocabulary=51200, context=2048), 64, 512, 512),
}


def make_megatron(parameters: float, **changed: Any) -> TrainingSetup:
    model, pp, batch, microbatches = MEGATRON[parameters]
    return replace(TrainingSetup(model, Mesh(tp=8, pp=pp), batch, 2048, microbatches), **changed)


def make_gpt3(**changed: Any) -> TrainingSetup:
    """Return GPT-3, h 12288 and a 96, without a pipeline, with samples of 2048 tokens in micro-batches of one."""
    return replace(TrainingSetup(load_preset("gpt3-175b"), Mesh(tp=8), 64, 2048, 64), **changed)


SBH = 2048 * 12288


@pytest.mark.parametrize("parameters", MEGATRON)
def test_the_models_of_megatron_have_the_stated_parameters(parameters):
    assert count_parameters(MEGATRON[parameters][0]).total == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("parameters", MEGATRON)
def test_a_layers_activations_agree_with_the_table_of_megatron(parameters):
    """Korthikanti et al., arXiv 2205.05198, table 2, for the models of table 3."""
    setup = make_megatron(parameters)
    model = MEGATRON[parameters][0]
    sbh, scores = setup.tokens * model.width, 5 * model.heads * 2048 / model.width
    table: list[tuple[dict[str, Any], float]] = [
        ({"mesh": Mesh(pp=setup.mesh.pp)}, 34 + scores),
        ({}, 10 + 24 / 8 + scores / 8),
        ({"sequence_parallel": True}, 34 / 8 + scores / 8),
        ({"recompute": "selective"}, 10 + 24 / 8),
        ({"sequence_parallel": True, "recompute": "selective"}, 34 / 8),
        ({"recompute": "full"}, 2),
    ]
    for settings, per_sbh in table:
        assert keep_layer(replace(setup, **settings)).kept == pytest.approx(per_sbh * sbh), settings


@pytest.mark.parametrize("parameters", [530e9, 1e12])
def test_sequence_parallelism_and_selective_recomputation_keep_a_fifth_of_the_largest_models_activations(parameters):
    """Korthikanti et al., arXiv 2205.05198, section 6.1; the bars of figure 7 have no numbers."""
    setup = make_megatron(parameters)
    reduced = replace(setup, sequence_parallel=True, recompute="selective")
    assert compute_kept(setup, 0) / compute_kept(reduced, 0) == pytest.approx(5, rel=0.05)


def test_freeing_the_outputs_of_stages_saves_2_73_gib():
    """Korthikanti et al., arXiv 2205.05198, appendix B: s b h p for the 530B model, which the paper calls GB.

    The estimate also counts the gradient of an output, for one micro-batch.
    """
    setup = make_megatron(530e9)
    kept, freed = (compute_kept(replace(setup, program=TrainingProgram(keeps_outputs=k)), 0) for k in (True, False))
    assert kept - freed == pytest.approx(2.73 * 2**30, rel=0.05)


def test_selective_recomputation_saves_70_percent_of_gpt3s_and_65_percent_of_mt_nlgs_activations():
    """Korthikanti et al., section 5: 5 a s / h is 80 for GPT-3 and 64 for MT-NLG, saving 70 % and 65 %."""
    mt_nlg = TrainingSetup(TransformerShape(layers=105, width=20480, heads=128), Mesh(), 1, 2048, 1)
    for setup, saved in ((make_gpt3(mesh=Mesh()), 0.70), (mt_nlg, 0.65)):
        kept, recomputed = (keep_layer(replace(setup, recompute=r)) for r in ("none", "selective"))
        assert 1 - recomputed.kept / kept.kept == pytest.approx(saved, abs=0.01)
        assert recomputed.recomputed == pytest.approx(kept.kept - recomputed.kept)


def test_the_first_stage_of_1f1b_keeps_the_activations_of_all_layers_for_one_micro_batch():
    """Korthikanti et al., equation 5: s b h L (34 + 5 a s / h) / t, and section 4.3: s b h p / t for the embedding."""
    setup = make_gpt3(mesh=Mesh(tp=8, pp=8), sequence_parallel=True)
    assert compute_kept(setup, 0) == pytest.approx(SBH * 96 * (34 + 80) / 8 + SBH * 8 / 8)
    assert compute_kept(setup, 7) < compute_kept(setup, 0) / 7


def test_interleaved_stages_keep_the_published_multiple_of_activations():
    """Korthikanti et al., section 4.2.3: 1 + (p - 1) / (p v) times those of 1F1B, here with p = 8 and v = 2."""
    plain = make_gpt3(mesh=Mesh(tp=8, pp=8), sequence_parallel=True)
    interleaved = replace(plain, schedule="interleaved_1f1b")
    without_embedding = [compute_kept(setup, 0) - SBH for setup in (plain, interleaved)]
    assert without_embedding[1] / without_embedding[0] == pytest.approx(1 + 7 / 16, rel=0.01)


@pytest.mark.parametrize("name", ["interleaved_1f1b", "looped_bfs", "zbv", "dualpipev"])
def test_a_rank_of_two_stages_keeps_as_many_micro_batches_as_the_proven_schedule(name):
    model = TransformerShape(layers=32, width=1024, heads=8, vocabulary=8, like_llama=True)
    setup = TrainingSetup(model, Mesh(pp=4), 8, 1024, 8, schedule=name)
    _, live = make_schedule(name, 8, 8).count_activations()
    stage = setup.layers_per_stage * keep_layer(setup).kept
    assert [compute_kept(setup, rank) / stage for rank in range(4)] == pytest.approx(live, abs=0.2)


def test_the_output_layer_adds_4_sbh_and_its_logits_without_a_pipeline():
    """Korthikanti et al., section 4.3: 4 s b h (1 + v/h) / t, and s b h / t for the embedding's dropout."""
    setup = make_gpt3(sequence_parallel=True)
    layers = 96 * keep_layer(setup).kept
    extra = 4 * SBH * (1 + 50264 / 12288) / 8 + SBH / 8  # the vocabulary of 50257 is padded to a multiple of 8
    assert compute_kept(setup, 0) - layers == pytest.approx(extra)


def test_a_perceptron_keeps_the_outputs_of_tanh_but_inputs_and_outputs_of_gelu():
    """By hand, for 5 samples of 2-byte elements: 60 bytes for 6 features, 30 for the loss, none for the samples."""
    linears = tuple(LinearShape(inputs, outputs, "replicated") for inputs, outputs in ((4, 6), (6, 6), (6, 3)))
    for keeps_outputs, by_hand in ((True, [60, 60, 0, 30]), (False, [60, 60 + 60, 60, 30])):
        model = PerceptronShape(linears, keeps_outputs, has_classes=True)
        setup = TrainingSetup(model, Mesh(), 5, 1, 1)
        assert [part.kept for part in list_perceptron_parts(model, setup, 0)] == by_hand


def test_the_backward_pass_of_ring_attention_has_blocks_of_keys_and_scores():
    """By hand: h = 8, k = 4 and a = 2 for T = 16 / cp tokens of 2 bytes.

    cp = 2: four more tensors of k, three of h, and scores and their gradient, 2 * 2 * 8. cp = 4: twelve of k, two of h
    and scores, 2 * 4.
    """
    model = TransformerShape(layers=1, width=8, heads=2, kv_heads=1, like_llama=True)
    for cp, whole_scores, ring in ((1, True, 0), (2, True, 72), (2, False, 40), (4, True, 72)):
        setup = TrainingSetup(model, Mesh(cp=cp), 1, 16, 1, program=TrainingProgram(has_whole_scores=whole_scores))
        attention = list_transformer_parts(model, setup, 0)[1].moments[1]
        assert attention.alive == 16 / cp * 2 * (2 * 8 + 2 * (8 + 4))
        assert attention.in_flight == 16 / cp * 2 * (8 + 2 * (8 + 4) + ring), (cp, whole_scores)


def test_a_gated_model_keeps_three_tensors_of_its_mlp_and_fewer_keys():
    """Llama-3-8B, per token, by hand: 4 h + 2 h + 2 k + 3 f elements of 2 bytes, and 2 bytes for each of a s scores."""
    setup = TrainingSetup(load_preset("llama-3-8b"), Mesh(), 1, 8192, 1)
    by_hand = 2 * (6 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 32 * 8192
    assert keep_layer(setup).kept == 8192 * by_hand
    assert keep_layer(replace(setup, mesh=Mesh(cp=4))).kept == 2048 * by_hand


def test_a_mixture_of_experts_keeps_the_mlp_of_each_active_expert():
    """Mixtral with FlashAttention, per token: 4 h + 2 * 2 h exchanged + 2 h + 2 k + 2 * 3 f elements of 2 bytes."""
    setup = TrainingSetup(load_preset("mixtral-8x7b"), Mesh(ep=8), 8, 4096, 1, recompute="selective")
    assert keep_layer(setup).kept == 4096 * 2 * (10 * 4096 + 2 * 1024 + 6 * 14336)


def test_zero_shards_experts_over_fewer_ranks_than_attention():
    setup = TrainingSetup(load_preset("mixtral-8x7b"), Mesh(dp=2, ep=8), 16, 4096, 1, zero=3)
    expert = 32 * 3 * 4096 * 14336  # of one expert per layer
    dense = 46_702_792_704 - 8 * expert
    assert compute_memory(setup).weights == pytest.approx(2 * (dense / 16 + expert / 2))


def test_layers_in_flight_need_buffers_with_zero_2_and_3_only():
    setup = TrainingSetup(load_preset("gpt3-175b"), Mesh(dp=8), 8, 2048, 1)
    layer = 2 * (12 * 12288**2 + 13 * 12288)
    assert [compute_buffer_bytes(replace(setup, zero=zero), 0) for zero in range(4)] == [0, 0, layer, 3 * layer]


def test_the_rank_that_needs_most_memory_counts():
    setup = make_gpt3(mesh=Mesh(tp=8, pp=8))
    assert compute_memory(setup) == compute_rank_memory(setup, 0)
    llama = TrainingSetup(load_preset("llama-3-8b"), Mesh(pp=2), 2, 8192, 1)
    assert compute_memory(llama) == compute_rank_memory(llama, 1)  # logits of 128,256 tokens
