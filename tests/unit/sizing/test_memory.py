"""Memory against the published tables of ZeRO and of Megatron-LM's activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpccoll.parallel import Mesh
from hpccoll.schedules import make_schedule
from hpccoll.sizing import ModelShape, Precision, TrainingSetup, load_preset
from hpccoll.sizing.backward_moments import list_moments
from hpccoll.sizing.memory import (
    compute_buffer_bytes,
    compute_memory,
    compute_rank_memory,
    compute_state_bytes,
)
from hpccoll.sizing.transformer import LayerActivations, compute_layer_activations

# Rajbhandari et al., ZeRO, arXiv 1910.02054, table 1: GB per device, by parameters and degree of data parallelism, for
# the stages 1, 2 and 3. Entries that the table rounds to one digit are left out: 0.12 for 7.5B and 2 for 128B at 1024.
ZERO_TABLE = {
    (7.5e9, 1): (120, 120, 120),
    (7.5e9, 4): (52.5, 41.3, 30),
    (7.5e9, 16): (35.6, 21.6, 7.5),
    (7.5e9, 64): (31.4, 16.6, 1.88),
    (7.5e9, 256): (30.4, 15.4, 0.47),
    (128e9, 4): (896, 704, 512),
    (128e9, 16): (608, 368, 128),
    (128e9, 64): (536, 284, 32),
    (128e9, 256): (518, 263, 8),
    (128e9, 1024): (513, 257, 2),
    (1e12, 4): (7000, 5500, 4000),
    (1e12, 16): (4750, 2875, 1000),
    (1e12, 64): (4187, 2218, 250),
    (1e12, 256): (4046, 2054, 62.5),
    (1e12, 1024): (4011, 2013, 15.6),
}


def total_state(parameters: float, zero: int, replicas: int, precision: Precision | None = None) -> float:
    state = compute_state_bytes(parameters, zero, replicas, precision or Precision())
    return state.weights + state.gradients + state.optimizer


@pytest.mark.parametrize(("case", "published"), ZERO_TABLE.items())
def test_the_state_of_the_model_agrees_with_the_table_of_zero(case, published):
    parameters, replicas = case
    for zero, gb in enumerate(published, 1):
        assert total_state(parameters, zero, replicas) == pytest.approx(gb * 1e9, rel=0.05), zero


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
    assert isinstance(setup.model, ModelShape)
    return compute_layer_activations(setup.model, setup)


def compute_kept(setup: TrainingSetup, rank: int) -> float:
    """Return the bytes of the activations of a rank when it keeps most of them."""
    return max(each.activations for each in list_moments(setup, rank))


def make_gpt3(**changed: Any) -> TrainingSetup:
    """GPT-3 as in Korthikanti et al., table 3: h 12288, a 96, s 2048, micro-batches of one sample."""
    return replace(TrainingSetup(load_preset("gpt3-175b"), Mesh(tp=8), 64, 2048, 64), **changed)


SBH = 2048 * 12288


@pytest.mark.parametrize(
    ("settings", "per_sbh"),
    [  # Korthikanti et al., arXiv 2205.05198, table 2; 5 a s / h = 5 * 96 * 2048 / 12288 = 80
        ({"mesh": Mesh()}, 34 + 80),
        ({}, 10 + 24 / 8 + 80 / 8),
        ({"sequence_parallel": True}, 34 / 8 + 80 / 8),
        ({"recompute": "selective"}, 10 + 24 / 8),
        ({"sequence_parallel": True, "recompute": "selective"}, 34 / 8),
        ({"recompute": "full"}, 2),
    ],
)
def test_a_layers_activations_agree_with_the_table_of_megatron(settings, per_sbh):
    assert keep_layer(make_gpt3(**settings)).kept == pytest.approx(per_sbh * SBH)


def test_selective_recomputation_saves_70_percent_of_gpt3s_and_65_percent_of_mt_nlgs_activations():
    """Korthikanti et al., section 5: 5 a s / h is 80 for GPT-3 and 64 for MT-NLG, saving 70 % and 65 %."""
    mt_nlg = TrainingSetup(ModelShape(layers=105, width=20480, heads=128), Mesh(), 1, 2048, 1)
    for setup, saved in ((make_gpt3(mesh=Mesh()), 0.70), (mt_nlg, 0.65)):
        kept, recomputed = (keep_layer(replace(setup, recompute=r)) for r in ("none", "selective"))
        assert 1 - recomputed.kept / kept.kept == pytest.approx(saved, abs=0.01)
        assert recomputed.recomputed == pytest.approx(kept.kept - recomputed.kept)


def test_the_first_stage_of_1f1b_keeps_the_activations_of_all_layers_for_one_micro_batch():
    """Korthikanti et al., equation 5: s b h L (34 + 5 a s / h) / t, and s b h p / t for the embedding's dropout."""
    setup = make_gpt3(mesh=Mesh(tp=8, pp=8), sequence_parallel=True)
    assert compute_kept(setup, 0) == pytest.approx(SBH * 96 * (34 + 80) / 8 + SBH * 8 / 8)
    assert compute_kept(setup, 7) < compute_kept(setup, 0) / 7


def test_interleaved_stages_keep_the_published_multiple_of_activations():
    """Korthikanti et al., section 4.3: 1 + (p - 1) / (p v) times those of 1F1B, here with p = 8 and v = 2."""
    plain = make_gpt3(mesh=Mesh(tp=8, pp=8), sequence_parallel=True)
    interleaved = replace(plain, schedule="interleaved_1f1b")
    without_embedding = [compute_kept(setup, 0) - SBH for setup in (plain, interleaved)]
    assert without_embedding[1] / without_embedding[0] == pytest.approx(1 + 7 / 16, rel=0.01)


@pytest.mark.parametrize("name", ["interleaved_1f1b", "looped_bfs", "zbv", "dualpipev"])
def test_a_rank_of_two_stages_keeps_as_many_micro_batches_as_the_proven_schedule(name):
    model = ModelShape(layers=32, width=1024, heads=8, vocabulary=8, like_llama=True)
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
