"""The trained models as modules of torch, for the comparison with torch's own parallelism.

The parameters have the names of hpccoll's parameters. The first and the last stage of a GPT both have the weight that
the embedding and the head share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hpccoll.parallel.mesh import Mesh, split_evenly
from hpccoll.train.gpt import SPLIT_BY_INPUT
from hpccoll.train.options import BYTES, CourseConfig, GptConfig, MlpConfig, ModelConfig
from hpccoll.train.perceptron import get_activation, list_stage_layers

GPT_STYLES = {  # names in `hpccoll.peers.torch_training.STYLES`, by the last part of a layer's name
    **dict.fromkeys(("query", "key", "value", "up", "gate"), "column"),
    **dict.fromkeys(SPLIT_BY_INPUT, "row"),
    **dict.fromkeys(("norm1", "norm2", "norm"), "shared output"),
    "embedding": "vocabulary",
}


PERCEPTRON_STYLES = {"column": "column", "gathered": "gathered column", "row": "row"}  # by the layer's split


class TorchBlock(nn.Module):  # type: ignore[misc] # torch has no types here
    """A block of a GPT as a torch module: causal attention and an MLP, each after a layer norm."""

    def __init__(self, model: GptConfig) -> None:
        super().__init__()
        width, hidden = model.width, model.mlp_width
        self.head_width = width // model.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gate = nn.Linear(width, hidden) if model.is_gated else None

    def forward(self, x: Any) -> Any:
        """Return the output of the block for x: b samples, t positions, h features (b, t, h) -> (b, t, h)."""
        h = self.norm1(x)
        heads = (
            layer(h).unflatten(2, (-1, self.head_width)).transpose(1, 2)  # (b, heads/tp, t, a)
            for layer in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        up = self.up(h)
        hidden = nn.functional.gelu(up) if self.gate is None else nn.functional.silu(self.gate(h)) * up
        return x + self.down(hidden)


class TorchGptStage(nn.Module):  # type: ignore[misc]
    """A pipeline stage of a GPT as a torch module; the whole model if the mesh has no pp."""

    def __init__(self, model: GptConfig, mesh: Mesh, stage: int) -> None:
        super().__init__()
        blocks = split_evenly(model.layers, mesh.stages)[stage]
        self.is_first, self.is_last = stage == 0, stage == mesh.stages - 1
        if self.is_first or self.is_last:
            self.embedding = nn.Embedding(BYTES, model.width)
        if self.is_first:
            self.position = nn.Embedding(model.context, model.width)
        self.blocks = nn.ModuleDict({str(block): TorchBlock(model) for block in range(blocks.start, blocks.stop)})
        if self.is_last:
            self.norm = nn.LayerNorm(model.width)

    def forward(self, x: Any) -> Any:
        """Return the output of the stage: x (b, t) or (b, t, h) -> (b, t, h), or (b, t, V) from the last stage.

        With tp, the logits are a DTensor split over the vocabulary, as torch's `loss_parallel` needs them.
        """
        if self.is_first:
            x = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        return nn.functional.linear(self.norm(x), self.embedding.weight) if self.is_last else x

    def choose_style(self, layer: str) -> str | None:
        """Return how DTensor splits the layer named `layer`, or None if every rank of tp has the whole layer."""
        return GPT_STYLES.get(layer)


class TorchPerceptronStage(nn.Module):  # type: ignore[misc]
    """A pipeline stage of a perceptron as a torch module; the whole model if the mesh has no pp."""

    def __init__(self, model: MlpConfig, mesh: Mesh, stage: int) -> None:
        super().__init__()
        layers = list_stage_layers(model, mesh, stage)
        self.last, self.activate, self.choose_split = model.layers - 1, get_activation(model), model.choose_split
        self.layers = nn.ModuleDict({str(layer): nn.Linear(*reversed(model.weight_shape(layer))) for layer in layers})

    def forward(self, x: Any) -> Any:
        """Return the output of the stage: (b, in) -> (b, out)."""
        for layer, linear in self.layers.items():
            x = linear(x) if int(layer) == self.last else self.activate(linear(x))
        return x

    def choose_style(self, layer: str) -> str | None:
        """Return how DTensor splits the layer named `layer`, or None if every rank of tp has the whole layer."""
        return PERCEPTRON_STYLES.get(self.choose_split(int(layer))) if layer.isdecimal() else None


STAGES = {MlpConfig: TorchPerceptronStage, CourseConfig: TorchPerceptronStage, GptConfig: TorchGptStage}


def make_torch_stage(model: ModelConfig, mesh: Mesh, rank: int, full: Mapping[str, Any], device: str) -> Any:
    """Return a rank's pipeline stage as a torch module on `device`, not split over tp, with parameters from `full`.

    Local.
    """
    (stage,) = mesh.list_stages(rank)
    with torch.device("meta"):
        module: Any = STAGES[type(model)](model, mesh, stage)
    module.load_state_dict({name: full[name] for name in module.state_dict()}, assign=True)
    return module.to(device)


def list_tensor_parallel_styles(stage: Any) -> dict[str, str]:
    """Return, by name of a layer of the stage, the style in which DTensor must split it, such as `column`.

    The styles are the same as those of hpccoll's own layers.
    """
    names = (name for name, _ in stage.named_modules())
    return {name: style for name in names if (style := stage.choose_style(name.split(".")[-1])) is not None}
