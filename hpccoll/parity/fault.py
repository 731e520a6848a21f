"""A tensor in one process, the shards of it on the ranks of a mesh, and the likely fault behind a difference."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.parity.shard_location import ShardIndex

Predict = Callable[[int], Any]  # rank -> the whole tensor that a fault would leave on the rank


@dataclass(frozen=True, slots=True)
class Fault:
    """The likely mistake of a training step, such as a missing sum over an axis, that explains a wrong tensor."""

    kind: str  # a short name for scripts, such as missing_sum_tp
    text: str  # a description for people, in which "it" is the wrong tensor


UNKNOWN = Fault("unknown", "no known fault explains the difference")


@dataclass(frozen=True, slots=True)
class FoundShard:
    """The part of a tensor that one rank holds: its values, and their position in the whole tensor (`index`)."""

    rank: int
    index: ShardIndex
    values: Any


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """A tensor of training in one process, and its shards on the ranks of a mesh, both in float64."""

    name: str
    expected: Any  # the whole tensor in one process
    shards: Sequence[FoundShard]  # the shards of all ranks that hold the parameter
    bound: float  # the largest difference that rounding explains
    is_only_some: bool = False  # whether only some of the model's gradients are wrong

    @property
    def differing(self) -> list[FoundShard]:
        """The shards with an element that differs from its value in one process by more than the bound."""
        return [shard for shard in self.shards if exceeds(shard.values, shard.index.take(self.expected), self.bound)]

    @property
    def is_complete(self) -> bool:
        """Whether the shards of all ranks together contain all elements of the whole tensor."""
        rows = [shard.index.rows for shard in self.shards if shard.index.dim is not None]
        if len(rows) < len(self.shards) or not rows:
            return bool(self.shards)
        dim = self.shards[0].index.dim or 0
        return len(torch.cat(rows).unique()) == int(self.expected.shape[dim])

    @property
    def error(self) -> float:
        """The largest difference of any element, divided by `largest`; infinite for a wrong shape or without shards."""
        pairs = [(shard.values, shard.index.take(self.expected)) for shard in self.shards]
        errors = [float((x - y).abs().max()) if x.shape == y.shape else math.inf for x, y in pairs]
        return max(errors, key=lambda error: (math.isnan(error), error), default=math.inf) / self.largest

    def assemble(self) -> Any:
        """Return the whole tensor, put together from the ranks' shards.

        If a rank holds the whole tensor, its values are returned. Elements that several ranks hold come from the last
        of these ranks.
        """
        whole = torch.zeros_like(self.expected)
        for shard in self.shards:
            if shard.index.dim is None:
                return shard.values
            whole.index_copy_(shard.index.dim, shard.index.rows, shard.values)
        return whole

    def matches(self, predict: Predict, among: Iterable[FoundShard] | None = None) -> bool:
        """Whether shards have the values that a fault would produce on their ranks, within 4 times the bound.

        Args:
            predict: returns, for a rank, the whole tensor that the fault would produce on this rank.
            among: the shards to compare; None for the shards that differ from one process. The result is false if there
                are no shards.
        """
        chosen = list(self.differing if among is None else among)
        scale = max([1.0, *(float(predict(shard.rank).abs().max()) / self.largest for shard in chosen)])
        return bool(chosen) and not any(
            exceeds(shard.values, shard.index.take(predict(shard.rank)), 4 * self.bound * scale) for shard in chosen
        )

    @property
    def largest(self) -> float:
        """The largest magnitude of an element of the expected tensor, or the bound if the bound is larger."""
        return max(float(self.expected.abs().max()), self.bound, sys.float_info.min)

    def list_groups(self, sizes: Mesh, axis: str) -> list[list[FoundShard]]:
        """Return the shards in groups: a group has the shards of ranks that differ only along `axis` of the mesh."""
        by_rank = {shard.rank: shard for shard in self.shards}
        groups = {tuple(sizes.get_group_ranks(rank, axis)) for rank in by_rank}
        return [[by_rank[rank] for rank in group if rank in by_rank] for group in sorted(groups)]

    def select(self, mask: Any) -> ComparedTensor:
        """Return the same comparison for only the elements at which the boolean tensor `mask` is true.

        Every rank with a shard must hold the whole tensor.
        """
        shards = [replace(shard, values=shard.values[mask]) for shard in self.shards]
        return replace(self, expected=self.expected[mask], shards=shards)


def exceeds(found: Any, expected: Any, bound: float) -> bool:
    """Whether two tensors differ in shape, or in any element by more than `bound`; NaN differs from everything."""
    return found.shape != expected.shape or bool((~((found - expected).abs() <= bound)).any())


def fit_factor(pairs: Iterable[tuple[Any, Any]]) -> float:
    """Return the number c with which c * expected is closest to found, over all pairs (found, expected) of tensors.

    The number c minimises the sum of the squares of found - c * expected. The result is 0 if all expected tensors are
    zero.
    """
    numerator = denominator = 0.0
    for found, expected in pairs:
        numerator += float((found * expected).sum())
        denominator += float((expected * expected).sum())
    return numerator / denominator if denominator else 0.0


def format_shard_ranks(shards: Iterable[FoundShard]) -> str:
    """Return the ranks that hold the shards as a string, such as `rank 1` or `ranks 0, 2`."""
    ranks = [shard.rank for shard in shards]
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
