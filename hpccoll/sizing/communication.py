"""Traffic of a training step: the bytes that a rank sends, per strategy, collective and class of link.

A ring all_gather or reduce_scatter of a message of S bytes over n ranks sends (n-1)/n S bytes per rank, and an
all_reduce twice as many; no algorithm sends less (Patarasuk and Yuan, JPDC 2009). The bytes of a collective are those
of the busiest rank, which is the first, the second or the last rank of a pipeline. The argument `rank` of a function is
a rank's index along pp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

from hpccoll.parallel.mesh import AXES, REPLICAS, Mesh
from hpccoll.plan import Machine
from hpccoll.sizing.group_links import GroupLinks, find_group_links
from hpccoll.sizing.memory import compute_copied_bytes
from hpccoll.sizing.model_part import ParameterUnit
from hpccoll.sizing.rank_parts import list_rank_parts, list_stage_parts
from hpccoll.sizing.training_setup import REPLICA_AXES, TrainingSetup

GRADIENTS = ("dp", "zero1", "zero2", "zero3")  # strategies that send gradients and weights
MESSAGE_AXES = {"sp": ("tp",)}  # the axes of strategies that are not named after their axis


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that a rank sends in a training step by one collective of a parallel strategy, and the calls' time."""

    strategy: str  # dp, zero1, zero2, zero3, tp, sp, pp, cp, ep, or copies (of the state, to survive deaths)
    collective: str
    calls: int
    sent_bytes: float
    between_share: float  # of sent_bytes
    seconds: float
    group: int  # number of ranks that communicate with each other

    @property
    def between_bytes(self) -> float:
        """The bytes that the rank sends to other nodes."""
        return self.sent_bytes * self.between_share

    @property
    def within_bytes(self) -> float:
        """The bytes that the rank sends to ranks of its node."""
        return self.sent_bytes - self.between_bytes


class _Channel(NamedTuple):
    """The key by which traffic is summed: parallel strategy, collective, and the mesh axes of the communication."""

    strategy: str
    collective: str
    axes: tuple[str, ...]
    is_tied: bool = False  # whether only the two ends of the pipeline communicate, not all ranks along the axes


class _Calls(NamedTuple):
    """The number of calls of a collective in a step, and their bytes.

    `nbytes` are the bytes of whole messages if the collective runs on a ring, else the sent bytes.
    """

    nbytes: float
    calls: int


def list_traffic(setup: TrainingSetup, machine: Machine) -> list[Traffic]:
    """Return the traffic of a training step: of the busiest rank, for each strategy, collective and group of ranks."""
    by_rank = [_sum_calls(setup, rank) for rank in setup.compared_ranks]
    by_group: dict[tuple[object, ...], list[_Channel]] = {}
    for channel in dict.fromkeys(chain.from_iterable(by_rank)):
        axes = tuple(axis for axis in channel.axes if getattr(setup.mesh, axis) > 1)
        by_group.setdefault((axes, channel.is_tied, channel.collective), []).append(channel)
    traffic = []
    for channels in by_group.values():
        totals = [sum(calls[channel].nbytes for channel in channels if channel in calls) for calls in by_rank]
        busiest = by_rank[totals.index(max(totals))]
        traffic += [
            _make_traffic(setup, machine, channel, busiest[channel]) for channel in channels if channel in busiest
        ]
    return traffic


def _sum_calls(setup: TrainingSetup, rank: int) -> dict[_Channel, _Calls]:
    """Return the bytes and the number of a rank's calls in a step, by strategy, collective and axes."""
    by_channel: dict[_Channel, _Calls] = {}
    for channel, calls in chain(
        _list_gradient_calls(setup, rank),
        _list_layer_calls(setup, rank),
        _list_pipeline_calls(setup, rank),
        _list_copy_calls(setup, rank),
    ):
        before = by_channel.get(channel, _Calls(0.0, 0))
        by_channel[channel] = _Calls(before.nbytes + calls.nbytes, before.calls + calls.calls)
    return by_channel


def _make_traffic(setup: TrainingSetup, machine: Machine, channel: _Channel, calls_of_channel: _Calls) -> Traffic:
    """Return the traffic, with its time, of the calls on a channel (strategy, collective, axes).

    In a ring of n ranks, each rank sends (n-1)/n of the bytes of a message, and twice as many for an all_reduce.
    """
    collective, (sent, calls) = channel.collective, calls_of_channel
    sends = collective == "send"
    wraps = not sends or channel.strategy != "pp" or setup.pipeline.stages_per_rank > 1
    links = _find_links(setup.mesh, channel.axes, machine, collective == "all_to_all", wraps)
    if channel.is_tied:
        links = replace(links, size=2)  # the ring's last hop joins the ends of the pipeline
    rounds = 1 if sends else links.size - 1
    if not sends and collective != "all_to_all":
        times = 2 if collective == "all_reduce" else 1
        sent, rounds = times * (links.size - 1) / links.size * sent, times * links.doubling_rounds
    seconds = links.compute_seconds(sent, calls, rounds)
    return Traffic(channel.strategy, collective, calls, sent, links.between_share, seconds, links.size)


@lru_cache(maxsize=256)
def _find_links(mesh: Mesh, axes: tuple[str, ...], machine: Machine, every_peer: bool, wraps: bool) -> GroupLinks:
    """Return the links that the groups of ranks along axes of a mesh use.

    With `every_peer`, each rank sends to all others of its group. With `wraps`, a group's last rank sends to its first.
    """
    stride = min(map(mesh.stride, axes))
    return find_group_links(mesh.ranks, mesh.count(*axes), stride, machine, every_peer=every_peer, wraps=wraps)


def _list_gradient_calls(setup: TrainingSetup, rank: int) -> Iterator[tuple[_Channel, _Calls]]:
    """Yield the calls of a training step for gradients and weights among ranks that have the same parameters.

    Data parallelism (dp) sums the gradients of all micro-batches once per step, by an all_reduce. ZeRO-1 sums the
    gradients by a reduce_scatter, and gathers the updated weights. ZeRO-2 keeps no whole gradients, so it reduces them
    in each micro-batch. ZeRO-3 also gathers the weights of each layer in each forward and each backward pass, which is
    2 m W bytes for m micro-batches and W bytes of weights. With one micro-batch, and as many bytes of gradients as of
    weights, ZeRO-3 sends 3/2 of the bytes of dp, and ZeRO-1 and 2 as many as dp (Rajbhandari et al., ZeRO, arXiv
    1910.02054, section 7). There is one call per layer, whose message ZeRO pads to a multiple of the number of ranks.
    Experts have fewer replicas than other parameters. With sequence parallelism, the gradients of the parameters that
    each rank applies only to its own tokens are also summed over tp.
    """
    m, level, e = setup.microbatches, setup.shard_level, setup.precision.element_bytes
    strategy = f"zero{level}" if level else "dp"
    for unit, count in _list_rank_units(setup, rank):
        axes, n = REPLICA_AXES[unit.kind], setup.count_replicas(unit.kind)
        if n == 1:
            continue
        if level == 0:
            yield _Channel(strategy, "all_reduce", axes), _Calls(count * unit.elements * e, count)
            continue
        reductions, gathers = (m if level >= 2 else 1) * count, (2 * m if level == 3 else 1) * count
        nbytes = unit.pad(n) * e
        yield _Channel(strategy, "reduce_scatter", axes), _Calls(reductions * nbytes, reductions)
        yield _Channel(strategy, "all_gather", axes), _Calls(gathers * nbytes, gathers)


def _list_rank_units(setup: TrainingSetup, rank: int) -> Iterator[tuple[ParameterUnit, int]]:
    """Yield pairs of a rank's parameter unit (parameters that ZeRO shards together) and the number of equal units."""
    return ((unit, part.count) for part in list_rank_parts(setup, rank) for unit in part.units)


def _list_layer_calls(setup: TrainingSetup, rank: int) -> Iterator[tuple[_Channel, _Calls]]:
    """Yield the collectives of a training step within the layers of the rank with index `rank` along pp."""
    for part in list_rank_parts(setup, rank):
        for strategy, collective, calls, nbytes in part.traffic:
            times = part.count * setup.microbatches
            axes = MESSAGE_AXES.get(strategy, (strategy,))
            yield _Channel(strategy, collective, axes), _Calls(times * nbytes, times * calls)


def _list_pipeline_calls(setup: TrainingSetup, rank: int) -> Iterator[tuple[_Channel, _Calls]]:
    """Yield the calls between pipeline stages of the rank with index `rank` along pp.

    For T tokens of h features and e bytes per element, a stage sends its output, T*h*e bytes, and receives the gradient
    of the output. If embedding and output layer share a weight but are on different ranks, an all_reduce between two
    ranks sums the weight's gradient (V*h*e bytes for a vocabulary of V tokens), or the gradient's shard with ZeRO.
    """
    sends, m = _Channel("pp", "send", ("pp",)), setup.microbatches
    for stage, ends in enumerate(pairwise(setup.stage_ranks)):
        if rank in ends and ends[0] != ends[1]:
            yield sends, _Calls(m * list_stage_parts(setup, stage)[-1].output, m)
    for unit, _ in _list_rank_units(setup, rank):
        if unit.is_tied:
            n = setup.replicas if setup.shard_level else 1
            nbytes = float(unit.pad(n) // n * setup.precision.element_bytes)
            yield _Channel("pp", "all_reduce", ("pp",), is_tied=True), _Calls(nbytes, 1)


def _list_copy_calls(setup: TrainingSetup, rank: int) -> Iterator[tuple[_Channel, _Calls]]:
    """Yield the message with the copy of a rank's state to a neighbour; nothing if the setup sends no copies."""
    if setup.sends_copies:
        axes = REPLICAS if setup.replicas > 1 else AXES
        yield _Channel("copies", "send", axes), _Calls(compute_copied_bytes(setup, rank), 1)
