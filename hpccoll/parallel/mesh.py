"""The ranks of a job as a mesh of axes: data (dp), tensor (tp), pipeline (pp), context (cp), expert (ep) parallelism.

The batch is split over dp and ep, and the sequence of each sample over cp. Parameters are split over tp and pp, and
those of experts also over ep. Parameters are replicated over all axes that do not split them.

The axes are, from the innermost axis (whose neighbours are consecutive ranks) to the outermost one: tp, ep, cp, dp and
pp. The tp axis is innermost because every layer communicates along it: the ranks of a tp group share a node if
possible. The pp axis is outermost because a pipeline sends the fewest messages, so stages may be on different nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.units import format_count, format_nearest_divisors, format_nearest_multiples

AXES = ("dp", "tp", "pp", "cp", "ep")  # in the order of output
INNERMOST_FIRST = ("tp", "ep", "cp", "dp", "pp")
REPLICAS, EXPERT_REPLICAS = ("dp", "cp", "ep"), ("dp", "cp")  # axes over which parameters, or experts, are replicated
ZERO_LEVELS = {"zero1": 1, "zero2": 2, "zero3": 3}  # words of a strategy that set the level of ZeRO
SEQUENCE_PARALLEL = "sp"  # word of a strategy for sequence parallelism
TOKEN_REPLICAS = ("tp", *REPLICAS)  # axes whose ranks have different tokens with sequence parallelism


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of ranks: the number of ranks along each of the axes dp, tp, pp, cp and ep; 1 for an unused axis.

    `stage_ranks` has the index along pp of each pipeline stage; if it is empty, each index has one stage.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    stage_ranks: tuple[int, ...] = ()

    @classmethod
    def parse(cls, strategy: str, ranks: int | None = None) -> Mesh:
        """Return the mesh that a string such as `dp` or `dp=2,tp=2` describes for a job of `ranks` ranks.

        An axis without a number gets `ranks` divided by the other axes' numbers. The order of axes does not matter, and
        `dp2` is short for `dp=2`. If `ranks` is None, all axes need a number. Raises UsageError for an unknown or
        repeated axis, an invalid number, or a product that does not match `ranks`.
        """
        sizes: dict[str, int | None] = {}
        for word in strategy.split(","):
            axis, number = _split_word(word.strip())
            if axis not in AXES:
                raise UsageError(
                    f"unknown strategy {axis!r}; choose dp, tp, pp, cp or ep for all ranks, "
                    "or a mesh such as dp=2,tp=2,pp=2"
                )
            if axis in sizes:
                raise UsageError(f"{strategy}: {axis} is named twice; name each axis once")
            if ("=" in word or ranks is None) and not (number.isdecimal() and int(number)):
                remedy = f"{axis}=2" if ranks is None else f"{axis}=2, or only {axis}"
                raise UsageError(f"{strategy}: {word.strip()} has no number of ranks; write {remedy}")
            sizes[axis] = int(number) if number else None
        return cls(**_resolve_sizes(strategy, sizes, ranks))

    @property
    def ranks(self) -> int:
        """The total number of ranks."""
        return self.count(*AXES)

    @property
    def samplers(self) -> int:
        """The number of parts of the batch; ranks with the same part differ along tp, pp and cp only."""
        return self.dp * self.ep

    def count(self, *axes: str) -> int:
        """Return the number of ranks along all given axes together, the product of their sizes."""
        return prod([getattr(self, axis) for axis in axes])

    def stride(self, axis: str) -> int:
        """Return the distance in ranks between neighbours along an axis."""
        return self.count(*INNERMOST_FIRST[: INNERMOST_FIRST.index(axis)])

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len(self.stage_ranks) or self.pp

    def place_stages(self, stage_ranks: tuple[int, ...]) -> Mesh:
        """Return a copy of the mesh in which stage i is on the ranks with index `stage_ranks[i]` along pp."""
        return replace(self, stage_ranks=stage_ranks)

    def list_stages(self, rank: int) -> list[int]:
        """Return the numbers of a rank's pipeline stages in ascending order."""
        index = self.get_coordinates(rank)["pp"]
        return [stage for stage in range(self.stages) if self.get_stage_index(stage) == index]

    def get_stage_index(self, stage: int) -> int:
        """Return the index along pp of the ranks that have pipeline stage `stage`."""
        return (self.stage_ranks or range(self.pp))[stage]

    def get_coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's index along each axis of the mesh, by the name of the axis."""
        return {axis: rank // self.stride(axis) % getattr(self, axis) for axis in AXES}

    def get_sampler(self, rank: int) -> int:
        """Return the number of a rank's part of the batch, from 0 to `samplers` - 1."""
        index = self.get_coordinates(rank)
        return index["dp"] * self.ep + index["ep"]

    def get_group_ranks(self, rank: int, *axes: str) -> list[int]:
        """Return the ranks, `rank` included, that differ from `rank` along the given axes only, in ascending order."""
        mine = self.get_coordinates(rank)
        fixed = [other for other in AXES if other not in axes]
        return [
            other
            for other in range(self.ranks)
            if all(self.get_coordinates(other)[name] == mine[name] for name in fixed)
        ]

    def __str__(self) -> str:
        named = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return ",".join(named) or "dp=1"


def split_evenly(total: int, parts: int) -> list[slice]:
    """Split range(total) into `parts` consecutive slices whose lengths differ by at most one, longer ones first."""
    length, longer = divmod(total, parts)
    starts = [part * length + min(part, longer) for part in range(parts + 1)]
    return [slice(first, last) for first, last in pairwise(starts)]


def slice_microbatches(batch: int, mesh: Mesh, sampler: int, microbatches: int) -> list[slice]:
    """Return the micro-batches of the ranks with part number `sampler` of the batch, as slices of the global batch.

    `batch` is the number of samples of the global batch, and `microbatches` the number of slices.
    """
    own = split_evenly(batch, mesh.samplers)[sampler]
    return [
        slice(own.start + part.start, own.start + part.stop)
        for part in split_evenly(own.stop - own.start, microbatches)
    ]


def _split_word(word: str) -> tuple[str, str]:
    """Return the axis and the number of a word such as `dp=2` or `dp2` as strings; a missing number is empty."""
    if word[:2] in AXES and word[2:].isdecimal():
        return word[:2], word[2:]
    axis, _, number = word.partition("=")
    return axis, number


def split_strategy_words(strategy: str) -> tuple[str, list[str], bool]:
    """Return the axes of a strategy (`dp` if it names none), its words `zero1` to `zero3`, and whether it has `sp`."""
    words = [word.strip() for word in strategy.split(",")]
    axes = [word for word in words if word not in (*ZERO_LEVELS, SEQUENCE_PARALLEL)]
    levels = [word for word in words if word in ZERO_LEVELS]
    return ",".join(axes) if axes else "dp", levels, SEQUENCE_PARALLEL in words


def _resolve_sizes(strategy: str, sizes: dict[str, int | None], ranks: int | None) -> dict[str, Any]:
    """Return `sizes` with a None replaced such that the product is `ranks`; raise UsageError if this is impossible.

    `sizes` has the ranks by axis. If `ranks` is None, axes with None are left out. `strategy` is the user's string,
    which error messages quote.
    """
    known = {axis: size for axis, size in sizes.items() if size is not None}
    if ranks is None:
        return known
    open_axes = [axis for axis, size in sizes.items() if size is None]
    if len(open_axes) > 1:
        raise UsageError(
            f"{strategy}: {' and '.join(open_axes)} have no number; only one axis may take the remaining ranks"
        )
    product = prod(known.values())
    this_job = f"this job has {ranks} rank{'s' * (ranks != 1)}"
    if open_axes:
        if ranks % product:
            raise UsageError(
                f"{strategy}: {this_job}, which {product} does not divide; "
                f"name axes whose product is {format_nearest_divisors(product, ranks)}, "
                f"or start {format_nearest_multiples(ranks, product)} ranks"
            )
        return known | {open_axes[0]: ranks // product}
    if product != ranks:
        raise UsageError(
            f"{strategy} is a mesh of {format_count(product, 'rank')}, but {this_job}; "
            f"start {product} with mpirun -n {product}, or name axes whose product is {ranks}"
        )
    return known
