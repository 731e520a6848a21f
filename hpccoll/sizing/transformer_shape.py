"""The shape of a transformer whose training is estimated, and the presets of published models (presets.toml)."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.parallel.mesh import Mesh

_FILE = "presets.toml"
Positive = Annotated[int, Meta(ge=1, le=2**31)]


class TransformerShape(Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder-only transformer; without `like_llama`, it is built as GPT-2 is.

    GPT-2: LayerNorm and linear layers with biases, an MLP of two matrices, trained positions, dropout, and an output
    layer that shares the weight of the embedding. Llama: RMSNorm, no biases, a gated MLP of three matrices (SwiGLU), no
    trained positions, no dropout, and an output layer of its own. With several `experts`, each layer has as many MLPs,
    of which a router selects `active_experts` per token.

    `like_llama` selects Llama. Variants of GPT-2 have no biases of queries, keys and values (`qkv_biases` false), no
    dropout (`dropout` false), or an MLP of three matrices (`gated`). With `tiled_attention`, attention does not keep
    scores, but recomputes them (FlashAttention).

    `kv_heads` 0 stands for as many as `heads`, and `feed_forward` 0 for 4 `width`. `published` is the stated number of
    parameters, in 1e9, or 0.
    """

    layers: Positive
    width: Positive
    heads: Positive
    kv_heads: Annotated[int, Meta(ge=0)] = 0
    feed_forward: Annotated[int, Meta(ge=0)] = 0
    vocabulary: Positive = 50257
    context: Positive = 1024
    like_llama: bool = False
    experts: Positive = 1
    active_experts: Positive = 1
    qkv_biases: bool = True
    dropout: bool = True
    gated: bool = False
    tiled_attention: bool = False
    published: float = 0.0
    source: str = ""

    @property
    def mlp_width(self) -> int:
        """The number of features between the matrices of an MLP."""
        return self.feed_forward or 4 * self.width

    @property
    def kv_head_count(self) -> int:
        """The number of heads of keys and of values."""
        return self.kv_heads or self.heads

    @property
    def kv_width(self) -> int:
        """The number of features of a token's keys, and of its values."""
        return self.width // self.heads * self.kv_head_count

    @property
    def mlp_matrices(self) -> int:
        """The number of matrices of an MLP."""
        return 3 if self.like_llama or self.gated else 2

    @property
    def has_dropout(self) -> bool:
        """Whether a layer keeps dropout masks."""
        return self.dropout and not self.like_llama

    @property
    def used_weights(self) -> int:
        """The number of weights of a layer's matrices that a token uses."""
        mlp = self.mlp_matrices * self.width * self.mlp_width * self.active_experts
        router = self.width * self.experts if self.experts > 1 else 0
        return self.width * (2 * self.width + 2 * self.kv_width) + mlp + router

    def list_splits(self, mesh: Mesh, stages: int) -> list[tuple[int, str, int, str]]:
        """Return what a mesh splits: the number of parts, the option and its value, and what the parts are."""
        return [
            (mesh.tp, "--heads", self.heads, "tp"),
            (mesh.tp, "--kv-heads", self.kv_head_count, "tp"),
            (mesh.tp, "--feed-forward", self.mlp_width, "tp"),
            (mesh.ep, "--experts", self.experts, "ep"),
            (stages, "--layers", self.layers, "the number of pipeline stages"),
        ]

    def require_consistent(self) -> None:
        """Raise UsageError if heads do not divide the features, or more experts are active than there are."""
        if self.width % self.heads:
            raise UsageError(f"--width {self.width} cannot be shared by --heads {self.heads}; give a multiple of it")
        if self.heads % self.kv_head_count:
            raise UsageError(
                f"--kv-heads {self.kv_heads} do not divide --heads {self.heads}; every head of keys and values serves "
                "equally many heads of queries"
            )
        if self.active_experts > self.experts:
            raise UsageError(f"--active-experts {self.active_experts} is more than --experts {self.experts}")


def list_presets() -> list[str]:
    """Return the names of the models in presets.toml, in the order of the file."""
    return list(_read_presets())


def load_preset(name: str) -> TransformerShape:
    """Return a published model; for an unknown name raise UnknownNameError, which lists the valid names."""
    presets = _read_presets()
    if name not in presets:
        raise UnknownNameError("model", name, list(presets), "or give --layers, --width and --heads; ")
    return presets[name]


def _read_presets() -> dict[str, TransformerShape]:
    """Return the models of presets.toml by name."""
    text = (files(__package__) / _FILE).read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, TransformerShape])
