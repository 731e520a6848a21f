"""Parameter counts against those that the publishers of the models state."""

from __future__ import annotations

import msgspec
import pytest

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.parallel import Mesh
from hpccoll.sizing import TrainingSetup, TransformerShape, list_presets, load_preset
from hpccoll.sizing.parameters import count_active_parameters, count_parameters, count_rank_parameters

# Numbers of parameters in the published weights. GPT-2, Llama 2 7B, Llama 3 8B and Mixtral: the presets of
# github.com/keras-team/keras-hub. Llama 3 8B, 405B and Mixtral: `safetensors.total` of huggingface.co/api/models/ with
# meta-llama/Llama-3.1-8B, meta-llama/Llama-3.1-405B and mistralai/Mixtral-8x7B-Instruct-v0.1. For Llama 2, that number
# also counts the 64 rotary frequencies of each layer: 6,738,417,664 and 68,976,653,312.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_parameters_of_the_published_weights(name):
    assert count_parameters(load_preset(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("name", list_presets())
def test_a_preset_agrees_within_1_percent_with_the_number_that_its_publication_states(name):
    model = load_preset(name)
    assert count_parameters(model).total == pytest.approx(model.published * 1e9, rel=0.01)
    assert model.source


def test_gpt3_has_174_6_billion_parameters():
    """Brown et al., arXiv 2005.14165, table D.1."""
    assert count_parameters(load_preset("gpt3-175b")).total == pytest.approx(174_600e6, rel=1e-3)


def test_mixtral_uses_12_9_billion_parameters_per_token():
    assert count_active_parameters(load_preset("mixtral-8x7b")) == pytest.approx(12.9e9, rel=0.01)  # mistral.ai
    assert count_active_parameters(load_preset("gpt2")) == PUBLISHED["gpt2"]


def test_a_layer_of_gpt_has_12_h_h_plus_13_h_parameters():
    assert TransformerShape(layers=1, width=1024, heads=16).count_layer_parameters().total == 12 * 1024**2 + 13 * 1024


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-2-70b", "mixtral-8x7b"])
def test_the_ranks_of_a_mesh_have_all_parameters_together(name):
    """Only norms, biases, routers and positions are on several ranks; a tied output layer has a copy."""
    model = load_preset(name)
    mesh = Mesh(tp=8, pp=4, ep=model.experts)
    setup = TrainingSetup(model, mesh, 32, model.context, 4)
    stages = [count_rank_parameters(setup, stage) for stage in range(4)]
    held = sum(each.dense * mesh.tp + each.expert * mesh.tp * mesh.ep for each in stages)
    copied = 0 if model.like_llama else model.vocabulary * model.width
    assert held - copied == pytest.approx(count_parameters(model).total, rel=2e-3)


def test_unknown_models_are_refused_with_the_list_of_presets():
    with pytest.raises(UnknownNameError, match=r"gpt2, gpt2-large, .*llama-3-405b, llama-3-8b, mixtral-8x7b"):
        load_preset("gpt5")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 5}, "--width 768 cannot be shared by --heads 5"),
        ({"kv_heads": 5}, "--kv-heads 5 do not divide --heads 12"),
        ({"active_experts": 2}, "--active-experts 2 is more than --experts 1"),
    ],
)
def test_inconsistent_shapes_are_refused(changed, message):
    with pytest.raises(UsageError, match=message):
        msgspec.structs.replace(load_preset("gpt2"), **changed).require_consistent()
