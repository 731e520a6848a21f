"""The ranks of a job as a mesh of three axes: data (dp), tensor (tp) and pipeline (pp) parallelism.

    rank = (pp index * dp + dp index) * tp + tp index

tp lies innermost, since it talks in every layer: its ranks follow each other, and so share a node where they can. pp
lies outermost: its few messages are those that may cross nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hpccoll.errors import UsageError

AXES = ("dp", "tp", "pp")


@dataclass(frozen=True, slots=True)
class Mesh:
    """How many ranks each axis has."""

    dp: int = 1
    tp: int = 1
    pp: int = 1

    @classmethod
    def parse(cls, strategy: str, ranks: int) -> Mesh:
        """Return the mesh that a word such as `dp` or `dp=2,tp=2` means on that many ranks.

        An axis without a number takes all ranks that the others leave. The axes may come in any order, which does not
        change where they lie.

        Raises:
            UsageError: an axis that there is none of, a number that is none, or a mesh of more or fewer ranks.
        """
        sizes: dict[str, int | None] = {}
        for word in strategy.split(","):
            axis, _, number = word.strip().partition("=")
            if axis not in AXES:
                raise UsageError(
                    f"unknown strategy {axis!r}; choose dp, tp or pp for all ranks, or a mesh such as dp=2,tp=2,pp=2"
                )
            if axis in sizes:
                raise UsageError(f"{strategy}: {axis} is named twice; name each axis once")
            if "=" in word and not (number.isdecimal() and int(number)):
                raise UsageError(f"{strategy}: {word.strip()} has no number of ranks; write {axis}=2, or only {axis}")
            sizes[axis] = int(number) if number else None
        return cls(**_filled(strategy, sizes, ranks))

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.dp * self.tp * self.pp

    def place(self, rank: int) -> dict[str, int]:
        """Return a rank's index along each axis."""
        return {
            "dp": rank // self.tp % self.dp,
            "tp": rank % self.tp,
            "pp": rank // (self.tp * self.dp),
        }

    def members(self, axis: str, rank: int) -> list[int]:
        """Return the ranks of the group along `axis` that `rank` is in, in their order along it."""
        mine = self.place(rank)
        fixed = [other for other in AXES if other != axis]
        return [other for other in range(self.ranks) if all(self.place(other)[each] == mine[each] for each in fixed)]

    def __str__(self) -> str:
        named = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1]
        return ",".join(named) or "dp=1"


def shares(total: int, parts: int) -> list[slice]:
    """Cut 0..total into `parts` ranges that differ by one at most, the larger ones first."""
    each, more = divmod(total, parts)
    starts = [part * each + min(part, more) for part in range(parts + 1)]
    return [slice(first, last) for first, last in pairwise(starts)]


def _filled(strategy: str, sizes: dict[str, int | None], ranks: int) -> dict[str, int]:
    """Give the axis without a number what the others leave, and hold the product against the ranks."""
    open_axes = [axis for axis, size in sizes.items() if size is None]
    if len(open_axes) > 1:
        raise UsageError(f"{strategy}: {' and '.join(open_axes)} have no number; only one axis may take what is left")
    known = {axis: size for axis, size in sizes.items() if size is not None}
    product = 1
    for size in known.values():
        product *= size
    this_job = f"this job has {ranks} rank{'s' * (ranks != 1)}"
    if open_axes:
        if ranks % product:
            raise UsageError(f"{strategy}: the numbers make {product}, {this_job}, and {product} does not divide it")
        return known | {open_axes[0]: ranks // product}
    if product != ranks:
        raise UsageError(
            f"{strategy} is a mesh of {product} ranks, and {this_job}; "
            f"run mpirun -n {product} hpccoll train {strategy}, or name axes whose product is {ranks}"
        )
    return known
