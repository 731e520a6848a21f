"""Translates torch.distributed's reductions to hpccoll's."""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist

from hpccoll.arrays import Reduction
from hpccoll.errors import ReductionError

# Keys are hashes: a `ReduceOp` and the constant of its kind, such as `dist.ReduceOp.SUM`, have the same hash.
_NAMES: Final = {
    hash(getattr(dist.ReduceOp, name)): own
    for name, own in {
        "SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
        "BXOR": "bxor",
    }.items()
}  # fmt: skip


def parse_reduction(given: Any) -> str | Reduction:
    """Return hpccoll's name of a `torch.distributed.ReduceOp`, such as `sum`, or a `Reduction` for a PREMUL_SUM.

    Raises:
        ReductionError: torch has the reduction, but hpccoll does not.
    """
    name = _NAMES.get(hash(given))
    if name is not None:
        return name
    kind, factor = given.__getstate__() if isinstance(given, dist.ReduceOp) else (given, None)
    kind = dist.ReduceOp.RedOpType(kind)  # some versions of torch give an integer
    if kind == dist.ReduceOp.PREMUL_SUM:
        return Reduction("premul_sum", factor)
    raise ReductionError(f"hpccoll has no reduction {kind.name}; it has {', '.join(_NAMES.values())} and PREMUL_SUM")
