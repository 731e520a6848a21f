"""Traffic of a training step: the bytes that a rank sends, per strategy, collective and class of link.

A ring all_gather or reduce_scatter of a message of S bytes over n ranks sends (n-1)/n S per rank, and an all_reduce
twice as much; no algorithm sends less (Patarasuk and Yuan, JPDC 2009). The busiest rank is counted: the one with the
embedding or the output layer, and in a pipeline one between the ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hpccoll.plan import Machine
from hpccoll.sizing.group_links import GroupLinks, find_group_links
from hpccoll.sizing.parameters import ParameterCount, count_embedding, count_rank, count_token_parameters
from hpccoll.sizing.training_setup import TrainingSetup


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a rank sends for one strategy by one collective in a step, and how long these calls take."""

    strategy: str  # dp, zero1, zero2, zero3, tp, sp, pp, cp or ep
    collective: str
    calls: int
    sent_bytes: float
    between_share: float  # of sent_bytes
    seconds: float
    group: int  # ranks that communicate with each other

    @property
    def between_bytes(self) -> float:
        """The bytes sent to other nodes."""
        return self.sent_bytes * self.between_share

    @property
    def within_bytes(self) -> float:
        """The bytes sent inside the node."""
        return self.sent_bytes - self.between_bytes


def list_traffic(setup: TrainingSetup, machine: Machine) -> list[Traffic]:
    """Return the traffic of all strategies of a training step."""
    return [
        *_list_gradient_traffic(setup, machine),
        *_list_tensor_traffic(setup, machine),
        *_list_pipeline_traffic(setup, machine),
        *_list_context_traffic(setup, machine),
        *_list_expert_traffic(setup, machine),
    ]


def _find_links(setup: TrainingSetup, machine: Machine, size: int, first: str) -> GroupLinks:
    return find_group_links(setup.mesh.ranks, size, setup.mesh.stride(first), machine)


def _count_rank_parameters(setup: TrainingSetup) -> ParameterCount:
    """Return the parameters of the rank with most of them: the first or the last of the pipeline."""
    return max((count_rank(setup, rank) for rank in {0, setup.mesh.pp - 1}), key=lambda each: each.total)


def _list_gradient_traffic(setup: TrainingSetup, machine: Machine) -> Iterator[Traffic]:
    """Yield the traffic of gradients and weights between the ranks that have the same parameters.

    dp reduces the gradients of all micro-batches once, by an all_reduce of G bytes. ZeRO-1 reduces by reduce_scatter of
    G, and gathers the updated weights, W bytes. ZeRO-2 keeps no whole gradients, so it reduces them in each of m
    micro-batches. ZeRO-3 also gathers the weights of each layer in each forward and each backward pass: 2 m W. For
    m = 1 and G = W, ZeRO-3 sends 3/2 of the bytes of dp, and the others as many as dp (Rajbhandari et al., ZeRO,
    arXiv 1910.02054, section 7). There is one call per layer. Experts have fewer replicas. With sequence parallelism,
    the gradients of parameters that are applied to own tokens only are also summed over tp.
    """
    counted, m = _count_rank_parameters(setup), setup.microbatches
    zero = setup.zero if setup.replicas > 1 else 0  # without replicas, there is nothing to share
    layers = setup.layers_per_stage * setup.shape.stages_per_rank
    own = count_token_parameters(setup) if setup.sequence_parallel else 0
    groups = (
        (counted.dense - own, setup.replicas, "ep"),
        (own, setup.replicas * setup.mesh.tp, "tp"),
        (counted.expert, setup.expert_replicas, "cp"),
    )
    for parameters, size, first in groups:
        if size == 1 or not parameters:
            continue
        links = _find_links(setup, machine, size, first)
        nbytes = parameters * setup.precision.element_bytes
        if zero == 0:
            yield _make_ring_traffic("dp", "all_reduce", layers, nbytes, links)
            continue
        reductions, gathers = (m if zero >= 2 else 1), (2 * m if zero == 3 else 1)
        yield _make_ring_traffic(f"zero{zero}", "reduce_scatter", reductions * layers, reductions * nbytes, links)
        yield _make_ring_traffic(f"zero{zero}", "all_gather", gathers * layers, gathers * nbytes, links)


def _make_ring_traffic(strategy: str, collective: str, calls: int, nbytes: float, links: GroupLinks) -> Traffic:
    """Return the traffic of calls with `nbytes` in all, which send (n-1)/n of them, or twice that to reduce to all."""
    times = 2 if collective == "all_reduce" else 1
    sent = times * (links.size - 1) / links.size * nbytes
    seconds = links.compute_seconds(sent, calls, times * links.doubling_rounds)
    return Traffic(strategy, collective, calls, sent, links.between_share, seconds, links.size)


def _list_tensor_traffic(setup: TrainingSetup, machine: Machine) -> Iterator[Traffic]:
    """Yield the traffic of tensor parallelism, with messages of N = T h e bytes per micro-batch.

    A layer makes two all_reduce calls in the forward pass (after attention and after the MLP), two in the backward
    pass, and two more if the forward pass is recomputed (Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3), or
    one more if recomputation omits the second all_reduce, whose result the backward pass does not need. The embedding
    adds one in the forward and the output layer one in the backward pass; the loss adds three of one float32 per token.
    A mixture of experts adds one in the backward pass, of a gradient per kept choice (that of its routing weight).
    Sequence parallelism replaces each all_reduce by an all_gather and a reduce_scatter, and gathers the inputs of
    attention and MLP once more in the backward pass (Korthikanti et al., arXiv 2205.05198, section 4.2.2). A mixture of
    experts also gathers the router's outputs, T E e, but nothing more in the backward pass.
    """
    if setup.mesh.tp == 1:
        return
    links, m = _find_links(setup, machine, setup.mesh.tp, "tp"), setup.microbatches
    layers = setup.layers_per_stage * setup.shape.stages_per_rank
    nbytes = setup.tokens * setup.model.width * setup.precision.element_bytes
    recomputed = 1 + setup.program.repeats_last_reduction if setup.recompute == "full" else 0
    pairs = layers * (4 + recomputed) + (2 if setup.mesh.pp == 1 else 1)
    strategy = "sp" if setup.sequence_parallel else "tp"
    mixtures = m * layers if setup.model.experts > 1 else 0
    choices = float(mixtures * setup.tokens * setup.model.active_experts)
    if setup.routing is not None:
        choices = mixtures * setup.routing.kept / setup.routing.passes
    calls = 3 * m + mixtures
    sent = 3 * setup.precision.full_bytes * setup.tokens * m + choices * setup.precision.element_bytes
    if setup.sequence_parallel:
        # Recomputation that omits the last reduce_scatter of a layer keeps both all_gathers.
        gathers = m * (pairs + 2 * layers + 1 + layers * (recomputed == 1)) - mixtures
        routed = mixtures * (2 if recomputed else 1)
        routed_bytes = routed * setup.tokens * setup.model.experts * setup.precision.element_bytes
        yield _make_ring_traffic(strategy, "all_gather", gathers, gathers * nbytes, links)
        if routed:
            yield _make_ring_traffic(strategy, "all_gather", routed, routed_bytes, links)
        yield _make_ring_traffic(strategy, "reduce_scatter", m * pairs, m * pairs * nbytes, links)
        yield _make_ring_traffic(strategy, "all_reduce", calls, sent, links)
    else:
        yield _make_ring_traffic(strategy, "all_reduce", m * pairs + calls, m * pairs * nbytes + sent, links)


def count_pipeline_sends(setup: TrainingSetup) -> int:
    """Return the messages that the busiest rank sends per micro-batch: activations onward, gradients back."""
    placed = setup.family.place_stages(setup.shape)
    sends = [0] * setup.mesh.pp
    for rank, following in pairwise(placed):
        if rank != following:
            sends[rank] += 1
            sends[following] += 1
    return max(sends)


def _list_pipeline_traffic(setup: TrainingSetup, machine: Machine) -> Iterator[Traffic]:
    """Yield the messages between pipeline stages, T h e bytes each (split over tp with sequence parallelism).

    If embedding and output layer share a weight but are on different ranks, their gradients are summed: an all_reduce
    of V h e bytes between two ranks.
    """
    mesh, e = setup.mesh, setup.precision.element_bytes
    if mesh.pp == 1:
        return
    stride, has_loop = mesh.stride("pp"), setup.shape.stages_per_rank > 1
    links = find_group_links(mesh.ranks, mesh.pp, stride, machine, wraps=has_loop)
    sends = count_pipeline_sends(setup) * setup.microbatches
    sent = sends * setup.tokens * setup.model.width * e / setup.norm_split
    yield Traffic("pp", "send", sends, sent, links.between_share, links.compute_seconds(sent, sends, 1), links.size)
    placed = setup.family.place_stages(setup.shape)
    if not setup.model.like_llama and placed[0] != placed[-1]:
        ends = _find_links(setup, machine, mesh.pp, "pp")  # the ring's last hop joins the ends of the pipeline
        tied = float((count_embedding(setup.model, mesh.tp) - setup.model.context * setup.model.width) * e)
        yield Traffic("pp", "all_reduce", 1, tied, ends.between_share, ends.compute_seconds(tied, 1, 2), 2)


def _list_context_traffic(setup: TrainingSetup, machine: Machine) -> Iterator[Traffic]:
    """Yield the traffic of ring attention, with messages of 2 T k e bytes: the keys and values of a rank.

    They go around the ring of n ranks in n - 1 sends per layer in the forward pass, again in the backward pass, and
    again if the forward pass is recomputed. Their gradients follow them in the backward pass: n - 1 sends. Source: Liu,
    Zaharia and Abbeel, Ring attention, arXiv 2310.01889.
    """
    n = setup.mesh.cp
    if n == 1:
        return
    links = _find_links(setup, machine, n, "cp")
    layers = setup.layers_per_stage * setup.shape.stages_per_rank
    sends = setup.microbatches * layers * (4 if setup.recompute == "full" else 3) * (n - 1)
    sent = sends * 2 * setup.tokens * setup.model.kv_width * setup.precision.element_bytes / setup.mesh.tp
    yield Traffic("cp", "send", sends, sent, links.between_share, links.compute_seconds(sent, sends, 1), links.size)


def _list_expert_traffic(setup: TrainingSetup, machine: Machine) -> Iterator[Traffic]:
    """Yield the traffic of experts: tokens go to the ranks of their experts and back, and so do their gradients.

    Each of the 4 all_to_all calls per layer (6 if the forward pass is recomputed) moves T h e bytes for each active
    expert, of which (n-1)/n go to other ranks if tokens choose experts evenly (Lepikhin et al., GShard, arXiv
    2006.16668). A counted routing replaces this by its rows: half of the calls send rows to experts, half back.
    Each rank of tp sends whole tokens. Before the tokens, another all_to_all of each forward pass sends the number of
    tokens for each expert, 8 bytes each.
    """
    n = setup.mesh.ep
    if n == 1:
        return
    links = find_group_links(setup.mesh.ranks, n, setup.mesh.stride("ep"), machine, every_peer=True)
    layers = setup.layers_per_stage * setup.shape.stages_per_rank
    exchanges = setup.microbatches * layers * (6 if setup.recompute == "full" else 4)
    counted = setup.microbatches * layers * (2 if setup.recompute == "full" else 1)
    rows = (n - 1) * exchanges * setup.tokens * setup.model.active_experts / n
    if setup.routing is not None:
        rows = exchanges * setup.routing.exchanged / (2 * setup.routing.passes)
    row_bytes = setup.model.width * setup.precision.element_bytes
    sent = rows * row_bytes + (n - 1) * counted * 8 * setup.model.experts / n
    calls = exchanges + counted
    seconds = links.compute_seconds(sent, calls, n - 1)
    yield Traffic("ep", "all_to_all", calls, sent, links.between_share, seconds, n)
