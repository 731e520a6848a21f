"""Overlap ratios: the time of communication divided by the time of the computation beside it.

With a ratio of at most 1, the communication is hidden. All ratios are at peak rates and for long messages: F FLOP/s per
rank, and BW bytes/s, the rate at which a rank sends while all groups of its axis communicate. If ranks compute below
the peak rate, more communication is hidden. Symbols: b bytes per element, T tokens of a micro-batch on a rank, h width,
n ranks along the axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hpccoll.plan import Machine
from hpccoll.predict.machine_catalogue import require_capacity
from hpccoll.sizing.group_links import find_group_links
from hpccoll.sizing.training_setup import TrainingSetup
from hpccoll.sizing.transformer_shape import TransformerShape


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap ratio (communication over computation time) of a parallel strategy, and what it compares in words."""

    strategy: str
    ratio: float
    compared: str

    @property
    def hides(self) -> bool:
        """Whether the computation hides the communication, because it takes at least as long."""
        return self.ratio <= 1


def compute_dp_ratio(b: float, n: int, flop_per_s: float, tokens: float, bytes_per_s: float) -> float:
    """Return communication over computation time of data parallelism and of ZeRO-3: b (n-1) F / (2 n T BW).

    Data parallelism reduces the b P bytes of the gradients of P weights, while the backward pass computes 4 T P FLOPs:
    2 (n-1)/n b P / BW over 4 T P / F. ZeRO-3 gathers the b P bytes of a layer's weights while the forward pass of a
    layer computes 2 T P FLOPs: (n-1)/n b P / BW over 2 T P / F. In both, P cancels. ZeRO-1 and 2 send as much as dp.

    `b` is bytes per element, `n` ranks, `flop_per_s` F, `tokens` T of a rank, and `bytes_per_s` BW.
    """
    return b * (n - 1) * flop_per_s / (2 * n * tokens * bytes_per_s)


def compute_tp_ratio(b: float, n: int, flop_per_s: float, width: float, bytes_per_s: float) -> float:
    """Return communication over computation time of tensor parallelism: b (n-1) F / (2 h BW).

    The formula is for a linear layer with h inputs and h outputs. An all_gather or reduce_scatter of the activations, b
    T h bytes, takes (n-1)/n b T h / BW. The layer computes 2 T h^2 / n FLOPs on each rank. T cancels. `b` is bytes per
    element, `n` ranks, `flop_per_s` F, `width` h, and `bytes_per_s` BW.
    """
    return b * (n - 1) * flop_per_s / (2 * width * bytes_per_s)


def compute_pp_ratio(b: float, width: float, flop_per_s: float, weights: float, bytes_per_s: float) -> float:
    """Return communication over computation time of a pipeline: b h F / (2 P BW).

    A stage sends the activations, b T h bytes, while the next stage, of P weights on a rank, computes 2 T P FLOPs. T
    cancels. Layers of 16 h^2 weights (gated MLPs with f = 4 h) give b F / (32 h L BW) for the L layers of the next
    stage.

    `b` is bytes per element, `width` h, `flop_per_s` F, `weights` P, and `bytes_per_s` BW.
    """
    return b * width * flop_per_s / (2 * weights * bytes_per_s)


def compute_cp_ratio(b: float, kv_width: float, width: float, flop_per_s: float, t: float, bytes_per_s: float) -> float:
    """Return communication over computation time of ring attention: b k F / (h t BW).

    t = s/n is the number of tokens of each sample on a rank. In each step, a rank sends 2 b t k bytes, keys and values,
    while it computes the scores and weighted values of t queries and t keys. Scores and weighted values take 4 t^2 h
    FLOPs, of which a causal mask that is balanced over the ranks leaves 2 t^2 h.

    `b` is bytes per element, `kv_width` k, `width` h, `flop_per_s` F, and `bytes_per_s` BW.
    """
    return b * kv_width * flop_per_s / (width * t * bytes_per_s)


def list_overlaps(setup: TrainingSetup, machine: Machine) -> list[Overlap]:
    """Return the overlap ratio (communication over computation time) of each strategy that the mesh uses.

    The weights of a mixture of experts do not cancel in data parallelism: gradients of all experts are reduced, but a
    token uses few of them, so the ratio is multiplied by stored over used weights. Raises UsageError if the machine has
    no peak rate.
    """
    mesh, model, b = setup.mesh, setup.model, setup.precision.element_bytes
    peak, tokens = require_capacity(machine, "peak_flop_per_s"), setup.tokens
    used, overlaps = model.used_weights, []

    def get_bandwidth(size: int, first: str) -> float:
        """Return the bytes per second between neighbours in groups of `size` ranks, from axis `first` on."""
        seconds_per_byte = find_group_links(mesh.ranks, size, mesh.stride(first), machine).seconds_per_byte
        return 1 / seconds_per_byte if seconds_per_byte else inf  # bytes may cost less than a measurement resolves

    if (n := setup.replicas) > 1:
        stored = model.count_layer_parameters(1, mesh.ep).total if isinstance(model, TransformerShape) else used
        ratio = compute_dp_ratio(b, n, peak, tokens, get_bandwidth(n, "ep")) * stored / used
        compared = "all_gather of a layer: its forward pass" if setup.zero == 3 else "gradients: backward pass"
        overlaps.append(Overlap("zero3" if setup.zero == 3 else "dp", ratio, compared))
    if (n := mesh.tp) > 1:
        ratio = compute_tp_ratio(b, n, peak, model.width, get_bandwidth(n, "tp"))
        overlaps.append(Overlap("tp", ratio, "all_gather of activations: a linear layer h x h"))
    if (n := mesh.pp) > 1:
        weights = used * model.layers / setup.pipeline.stages / mesh.tp * setup.sequence_parallel_size
        ratio = compute_pp_ratio(b, model.width, peak, weights, get_bandwidth(n, "pp"))
        overlaps.append(Overlap("pp", ratio, "activations: forward pass of the next stage"))
    if isinstance(model, TransformerShape) and (n := mesh.cp) > 1:
        ratio = compute_cp_ratio(b, model.kv_width, model.width, peak, setup.sequence // n, get_bandwidth(n, "cp"))
        overlaps.append(Overlap("cp", ratio, "keys and values: a block of causal attention"))
    return overlaps
