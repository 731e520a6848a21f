"""Faults found without a simulation: factors, missing sums over an axis, missing or shifted elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, product
from typing import Any

import torch

from hpccoll.parallel.mesh import AXES, REPLICAS, Mesh
from hpccoll.parity.fault import ComparedTensor, Fault, FoundShard, exceeds, fit_factor, format_shard_ranks

MAX_CANDIDATES = 1000  # most positions in the bucket that `find_shift` compares
LOSS_FACTORS = (*REPLICAS, "microbatches")  # kinds of faults with these endings scale the loss, and so all gradients
SMALL_PART = 0.5  # largest fraction of elements that differ if an end of a gradient bucket is missing


def find_not_finite(wrong: ComparedTensor) -> Fault | None:
    """Return a fault if a rank's shard of the gradient has a NaN or an infinity, else None."""
    ranks = [shard for shard in wrong.shards if not bool(shard.values.isfinite().all())]
    return Fault("not_finite", f"NaN or infinity on {format_shard_ranks(ranks)}") if ranks else None


def find_zero(wrong: ComparedTensor) -> Fault | None:
    """Return a fault if the gradient is zero on all ranks on which it is wrong, else None."""
    if not wrong.matches(lambda _: torch.zeros_like(wrong.expected)):
        return None
    ranks = format_shard_ranks(wrong.differing)
    return Fault("no_gradient", f"no gradient reaches it on {ranks}: a detached branch or a missing backward pass")


def find_factor(wrong: ComparedTensor, factors: Mapping[str, float]) -> Fault | None:
    """Return a fault if all ranks hold the right gradient multiplied by the same number, else None.

    `factors` are the numbers by which known faults multiply gradients, by kind of fault.
    """
    factor = fit_factor((shard.values, shard.index.take(wrong.expected)) for shard in wrong.shards)
    if not wrong.matches(lambda _: wrong.expected * factor, wrong.shards):
        return None
    close = 4 * wrong.bound / wrong.largest + 1e-9
    if abs(factor - 1) <= close:
        return Fault("rounding", "the difference is at most four times the tolerance, and may be rounding")
    known = {kind: value for kind, value in factors.items() if abs(factor / value - 1) <= close}
    if wrong.is_only_some:  # factors of the loss come last: they would change all gradients
        known = {kind: known[kind] for kind in sorted(known, key=lambda kind: kind.endswith(LOSS_FACTORS))}
    if not known:
        return Fault("factor", f"it is {factor:.6g} times the right gradient on every rank")
    texts = " or ".join(_FACTOR_TEXTS[kind.removeprefix("inverse_")](kind) for kind in known)
    return Fault(f"factor_{next(iter(known))}", f"it is {factor:.6g} times the right gradient on every rank: {texts}")


def list_factors(sizes: Mesh, microbatches: int, samples: int) -> dict[str, float]:
    """Return the numbers by which known faults multiply gradients, by kind of fault, the likelier kinds first."""
    counts = {"microbatches": microbatches, **{axis: sizes.count(axis) for axis in AXES}}
    factors: dict[str, float] = {}
    for kind, count in counts.items():
        if count > 1:
            factors |= {kind: count, f"inverse_{kind}": 1 / count}
    factors |= {"twice": 2.0, "samples": float(samples), "inverse_samples": 1 / samples}
    if sizes.samplers > 1 and not samples % sizes.samplers:
        factors["local_samples"] = samples / sizes.samplers
    return factors


def _explain_axis_factor(kind: str) -> str:
    """Return the likely cause, in words, of a gradient that is wrong by a factor: the size of a mesh axis.

    `kind` is a kind of fault: the axis, such as `tp`, or `inverse_` and the axis if the gradient is too small.
    """
    axis = kind.rpartition("_")[2]
    if kind.startswith("inverse"):
        return f"divided by the size of {axis} once too often, or averaged over {axis} instead of summed"
    scaling = {
        "dp": "summed over dp without dividing each rank's loss or the sum by the size of dp",
        "tp": "summed over tp although every rank of tp already held the whole gradient, as after a wrong backward "
        "pass of an all_gather",
    }
    return scaling.get(axis, f"counted once per rank of {axis}")


_FACTOR_TEXTS: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(AXES, _explain_axis_factor),
    "microbatches": lambda kind: (
        "divided by the number of micro-batches once too often"
        if kind.startswith("inverse")
        else "summed over micro-batches without dividing by their number"
    ),
    "twice": lambda _: "accumulated or reduced twice",
    "samples": lambda kind: f"{'mean' if kind.startswith('inverse') else 'sum'} over samples taken once too often",
    "local_samples": lambda _: "the loss is a sum over the rank's samples instead of a mean",
}


def find_missing_reduction(wrong: ComparedTensor, sizes: Mesh) -> Fault | None:
    """Return a fault if the sum of the ranks' gradients over an axis is right except for a factor, else None."""
    for axis in ("tp", "dp", "pp", "cp", "ep"):
        groups = [group for group in wrong.list_groups(sizes, axis) if len(group) > 1]
        if not groups or any(not shard.index.is_same(group[0].index) for group in groups for shard in group):
            continue
        sums = [FoundShard(group[0].rank, group[0].index, sum(shard.values for shard in group)) for group in groups]
        factor = fit_factor((summed.values, summed.index.take(wrong.expected)) for summed in sums)
        if not factor or not wrong.matches(lambda _, c=factor: wrong.expected * c, sums):  # type: ignore[misc]
            continue
        size = len(groups[0])
        if abs(factor - 1) < 0.1:
            return Fault(
                f"missing_sum_{axis}", f"a sum over {axis} is missing: the ranks' gradients add up to the right one"
            )
        if abs(factor / size - 1) < 0.1:
            return Fault(
                f"missing_average_{axis}", f"an average over {axis} is missing: each rank holds its own gradient"
            )
        text = f"a sum over {axis} is missing, and the sum would be {factor:.4g} times the right gradient"
        return Fault(f"missing_sum_{axis}", text)
    return None


def find_missing_elements(wrong: ComparedTensor, sizes: Mesh) -> Fault | None:
    """Return a fault if only some elements differ, and all of these are zero or lack a sum over an axis, else None."""
    if any(shard.index.dim is not None for shard in wrong.shards):
        return None
    differing = torch.stack([(shard.values - wrong.expected).abs() > wrong.bound for shard in wrong.shards]).any(0)
    count = int(differing.sum())
    if not 0 < count < SMALL_PART * differing.numel():
        return None
    part = wrong.select(differing)
    fault = find_zero(part) or find_missing_reduction(part, sizes)
    if fault is None:
        return None
    flat = differing.flatten()
    where = f"{count} of {flat.numel()} elements"
    for end, elements in (("last", flat[-count:]), ("first", flat[:count])):
        if bool(elements.all()):
            text = f"the {end} {where} are wrong, as by a bucket that ends or begins too early: {fault.text}"
            return Fault("bucket_boundary", text)
    return Fault(fault.kind, f"{where} are wrong: {fault.text}")


def find_shift(wrong: ComparedTensor, gradients: Mapping[str, Any]) -> Fault | None:
    """Return a fault if the wrong values are found elsewhere in the bucket of right gradients, else None.

    `gradients` are the right gradients by name; the bucket is their concatenation.
    """
    first, *others = wrong.shards
    values = first.values.flatten()
    if (
        first.index.dim is not None
        or len(values) < 4
        or any(exceeds(other.values, first.values, 0) for other in others)
    ):
        return None
    inner = values[1:-1]  # the fault may have put any values at the ends of the bucket
    for names in (list(gradients), list(gradients)[::-1]):
        bucket = torch.cat([gradients[name].flatten() for name in names])
        starts = dict(zip(names, accumulate([0, *(gradients[name].numel() for name in names)]), strict=False))
        close = (bucket[: len(bucket) - len(inner) + 1] - inner[0]).abs() <= 4 * wrong.bound
        for at in close.nonzero().flatten().tolist()[:MAX_CANDIDATES]:
            if bool(((bucket[at : at + len(inner)] - inner).abs() <= 4 * wrong.bound).all()):
                return _describe_shift(wrong, at - 1, starts, gradients)
    return None


def _describe_shift(
    wrong: ComparedTensor, start: int, starts: Mapping[str, int], gradients: Mapping[str, Any]
) -> Fault:
    """Return the fault of a tensor that holds the bucket's elements from position `start` on.

    `starts` has the position at which each right gradient begins in the bucket.
    """
    shift = start - starts[wrong.name]
    for other, begin in starts.items():
        if begin == start and gradients[other].numel() == wrong.expected.numel():
            return Fault("other_parameter", f"it holds the gradient of {other}")
    text = (
        f"its elements are those {abs(shift)} position{'s' * (abs(shift) != 1)} {'later' if shift > 0 else 'earlier'}"
    )
    return Fault("bucket_offset", f"{text} in the bucket of all gradients")


def find_swapped_shards(wrong: ComparedTensor) -> Fault | None:
    """Return a fault if a rank holds the gradient of another rank's shard, else None."""
    for shard, other in product(wrong.differing, wrong.shards):
        expected = other.index.take(wrong.expected)
        if not other.index.is_same(shard.index) and not exceeds(shard.values, expected, 4 * wrong.bound):
            return Fault("swapped_shards", f"rank {shard.rank} holds the gradient of rank {other.rank}'s shard")
    return None


def find_previous_step(wrong: ComparedTensor, previous: Mapping[str, Any]) -> Fault | None:
    """Return a fault if the gradient is that of the previous step, or the sum of both steps' gradients, else None.

    `previous` are the right gradients of the previous step by name, empty in the first step.
    """
    if wrong.name not in previous:
        return None
    before = previous[wrong.name].cpu().double()
    if wrong.matches(lambda _: before):
        return Fault("previous_step", "it is the gradient of the step before")
    if wrong.matches(lambda _: before + wrong.expected):
        return Fault("not_zeroed", "the gradient of the step before was not set to zero")
    return None
