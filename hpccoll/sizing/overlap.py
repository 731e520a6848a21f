"""Overlap ratios: the time of communication divided by the time of the computation that runs at the same time.

With a ratio of at most 1, the communication is hidden. All ratios are at peak rates and for long messages: F FLOP/s per
rank, and BW bytes/s, the rate at which a rank sends while all groups of its axis communicate. If ranks compute below
the peak rate, more communication is hidden. In formulas, b is the bytes per element, T the number of tokens of a
micro-batch on a rank, h the width of the model, k that of keys and of values, and n the number of ranks along the axis.
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
    """The overlap ratio (communication over computation time) of a parallel strategy, and a description of both."""

    strategy: str
    ratio: float
    compared: str

    @property
    def hides(self) -> bool:
        """Whether the computation takes at least as long as the communication, and so hides it."""
        return self.ratio <= 1


def compute_dp_ratio(b: float, n: int, flop_per_s: float, tokens: float, bytes_per_s: float) -> float:
    """Return communication over computation time of data parallelism and of ZeRO-3: b (n-1) F / (2 n T BW).

    For P weights, data parallelism reduces b P bytes of gradients in 2 (n-1)/n b P / BW seconds, while the backward
    pass takes 4 T P / F seconds. For a layer of P weights, ZeRO-3 gathers b P bytes in (n-1)/n b P / BW seconds, while
    the forward pass takes 2 T P / F seconds. The number P of weights cancels in both ratios. ZeRO-1 and 2 send as much
    as data parallelism.
    """
    return b * (n - 1) * flop_per_s / (2 * n * tokens * bytes_per_s)


def compute_tp_ratio(b: float, n: int, flop_per_s: float, width: float, bytes_per_s: float) -> float:
    """Return communication over computation time of tensor parallelism: b (n-1) F / (2 h BW).

    The formula is for a linear layer with h inputs and h outputs. For T tokens, an all_gather or reduce_scatter of the
    activations, b T h bytes, takes (n-1)/n b T h / BW seconds, and the layer takes 2 T h^2 / (n F) seconds on each
    rank. The number T of tokens cancels in the ratio.
    """
    return b * (n - 1) * flop_per_s / (2 * width * bytes_per_s)


def compute_pp_ratio(b: float, width: float, flop_per_s: float, weights: float, bytes_per_s: float) -> float:
    """Return communication over computation time of a pipeline: b h F / (2 P BW).

    For T tokens, a stage sends activations of b T h bytes, while the next stage, with P weights on a rank, computes
    2 T P FLOPs. The number T of tokens cancels in the ratio. If the next stage has L layers of 16 h^2 weights (gated
    MLPs of width f = 4 h), the ratio is b F / (32 h L BW).
    """
    return b * width * flop_per_s / (2 * weights * bytes_per_s)


def compute_cp_ratio(b: float, kv_width: float, width: float, flop_per_s: float, t: float, bytes_per_s: float) -> float:
    """Return communication over computation time of ring attention: b k F / (h t BW).

    Each of n ranks has t = s/n of the s tokens of a sample. In each step, a rank sends t keys and t values, 2 b t k
    bytes, while it computes the scores and weighted values of t queries and t keys. Scores and weighted values take
    4 t^2 h FLOPs, of which a causal mask that is balanced over the ranks leaves 2 t^2 h.
    """
    return b * kv_width * flop_per_s / (width * t * bytes_per_s)


def list_overlaps(setup: TrainingSetup, machine: Machine) -> list[Overlap]:
    """Return the overlap ratios (communication over computation time) of dp or zero3, tp, pp and cp in the mesh.

    Only transformers have a ratio of cp. With a mixture of experts, gradients of all experts are reduced, but a token
    uses few experts, so the ratio of dp is multiplied by the number of stored weights, and divided by the number of
    used weights. Raises UsageError if the machine model states no peak rate.
    """
    mesh, model, b = setup.mesh, setup.model, setup.precision.element_bytes
    peak, tokens = require_capacity(machine, "peak_flop_per_s"), setup.tokens
    used, overlaps = model.used_weights, []

    def get_bandwidth(size: int, first: str) -> float:
        """Return the bytes per second between neighbours in groups of `size` ranks whose innermost axis is `first`."""
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
