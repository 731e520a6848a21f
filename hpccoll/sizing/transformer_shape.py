"""The shape of a transformer whose training is estimated, and the presets of published models (presets.toml).

Parameters. A layer of width h, with keys and values of width k, has h (2h + 2k) weights in attention (queries and
output h h each, keys and values h k each). The MLP of a layer, of feed-forward width f, has 2 h f weights, or 3 h f if
it is gated. A router to E experts has h E weights. For GPT-2, k = h and f = 4 h give 12 h^2 weights, of which Kaplan et
al., arXiv 2001.08361, table 1, count h (3 + 1) h in attention and 8 h^2 in the MLP. For h features, biases and norms
add 13 h parameters to a layer of GPT-2, and norms add 2 h to a layer of Llama. For a vocabulary of V tokens, the
embedding has V h weights, GPT-2's positions have c h (c tokens of context), and Llama's output layer has V h.

FLOPs. Per token, a layer takes 2 FLOPs for each weight that the token uses, and attention 4 s h for scores and weighted
values (2 s h each, for s keys of h features). For a vocabulary of V tokens, the output layer takes 2 h V FLOPs per
token; looking up an embedding takes none.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.sizing.model_part import ParameterCount

_FILE = "presets.toml"
ShapeCount = Annotated[int, Meta(ge=1, le=2**31)]


class TransformerShape(Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder-only transformer; without `like_llama`, it is built as GPT-2 is.

    GPT-2 has LayerNorm and linear layers with biases, an MLP of two matrices, trained positions, dropout, and an output
    layer that shares the weight of the embedding. Llama has RMSNorm, no biases, a gated MLP of three matrices (SwiGLU),
    no trained positions, no dropout, and an output layer with a weight of its own. With several `experts`, each layer
    has one MLP per expert, and a router selects `active_experts` of them per token.

    `like_llama` selects Llama. Variants of GPT-2 have no biases of queries, keys and values (`qkv_biases` false), no
    dropout (`dropout` false), or an MLP of three matrices (`gated`). With `tiled_attention`, attention does not keep
    scores, but recomputes them (FlashAttention).

    If `kv_heads` is 0, keys and values have as many heads as queries. If `feed_forward` is 0, the feed-forward width is
    4 times `width`. `published` is the published number of parameters, in 1e9, or 0 if there is none.
    """

    layers: ShapeCount
    width: ShapeCount
    heads: ShapeCount
    kv_heads: Annotated[int, Meta(ge=0)] = 0
    feed_forward: Annotated[int, Meta(ge=0)] = 0
    vocabulary: ShapeCount = 50257
    context: ShapeCount = 1024
    like_llama: bool = False
    experts: ShapeCount = 1
    active_experts: ShapeCount = 1
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
        """Whether a layer keeps dropout masks, one byte per element."""
        return self.dropout and not self.like_llama

    @property
    def norm_parameters(self) -> int:
        """The number of parameters of a norm: h scales for h features, and h biases as well in LayerNorm."""
        return self.width * (1 if self.like_llama else 2)

    @property
    def used_weights(self) -> int:
        """The number of weights of a layer's matrices that a token uses."""
        mlp = self.mlp_matrices * self.width * self.mlp_width * self.active_experts
        router = self.width * self.experts if self.experts > 1 else 0
        return self.width * (2 * self.width + 2 * self.kv_width) + mlp + router

    def count_layer_parameters(self, tp: int = 1, ep: int = 1) -> ParameterCount:
        """Return the number of a rank's parameters of a layer that `tp` ranks split and whose experts `ep` ranks share.

        tp splits all matrices, and the biases of those that are split by output; norms, router and the biases of the
        matrices that are split by input are on every rank of tp. ep splits the experts, which have no biases (Fedus et
        al., Switch Transformers, arXiv 2101.03961).
        """
        h, k, f, has_biases = self.width, self.kv_width, self.mlp_width, not self.like_llama
        attention = h * (2 * h + 2 * k) // tp + has_biases * (self.qkv_biases * (h + 2 * k) // tp + h)
        mlp, mlp_biases = self.mlp_matrices * h * f // tp, has_biases * ((self.mlp_matrices - 1) * f // tp + h)
        around = 2 * self.norm_parameters
        if self.experts == 1:
            return ParameterCount(attention + mlp + mlp_biases + around)
        return ParameterCount(attention + around + h * self.experts, mlp * (self.experts // ep))

    def count_vocabulary_weights(self, tp: int) -> int:
        """Return a rank's number of weights of the embedding or output layer, whose rows `tp` ranks split."""
        return -(-self.vocabulary // tp) * self.width

    def count_layer_flops(self, sequence: int) -> int:
        """Return the forward FLOPs of a layer per token, for samples of `sequence` tokens."""
        return 2 * self.used_weights + self.count_attention_core_flops(sequence)

    def count_attention_core_flops(self, sequence: int) -> int:
        """Return the forward FLOPs per token of a layer's scores and weighted values: 4 s h (s keys of h features)."""
        return 4 * sequence * self.width

    def count_sample_bytes(self, _dtype: str, _nbytes: int) -> int:
        """Return 0, because samples of text, which are integers, are not counted."""
        return 0

    def list_splits(self, mesh: Mesh, stages: int) -> list[tuple[int, str, int, str]]:
        """Return, for each quantity that the mesh splits: the number of parts, the option, its value, and the axis."""
        return [
            (mesh.tp, "--heads", self.heads, "tp"),
            (mesh.tp, "--kv-heads", self.kv_head_count, "tp"),
            (mesh.tp, "--feed-forward", self.mlp_width, "tp"),
            (mesh.ep, "--experts", self.experts, "ep"),
            (stages, "--layers", self.layers, "the number of pipeline stages"),
        ]

    def require_consistent(self) -> None:
        """Raise UsageError if heads do not divide the width, or KV heads the heads, or too many experts are active."""
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
    """Return the names of the published models in presets.toml, in the order of the file."""
    return list(_read_presets())


def load_preset(name: str) -> TransformerShape:
    """Return the shape of the published model `name`.

    Raises UnknownNameError, which lists the names, for another name.
    """
    presets = _read_presets()
    if name not in presets:
        raise UnknownNameError("model", name, list(presets), "or give --layers, --width and --heads; ")
    return presets[name]


def _read_presets() -> dict[str, TransformerShape]:
    """Return the shapes of the published models in presets.toml, by name."""
    text = (files(__package__) / _FILE).read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, TransformerShape])
