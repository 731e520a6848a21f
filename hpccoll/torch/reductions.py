"""Translates torch.distributed's reductions to hpccoll's."""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist

from hpccoll.errors import ReductionError
from hpccoll.runtime.arrays import Reduction

_NAMES: Final = {
    getattr(dist.ReduceOp, name): own
    for name, own in {
        "SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
        "BXOR": "bxor",
    }.items()
}  # fmt: skip
_BY_KIND: Final = {kind.name: own for kind, own in _NAMES.items()}


def parse_reduction(given: Any) -> str | Reduction:
    """Return hpccoll's name of a `torch.distributed.ReduceOp`, or a `Reduction` if the operation has a factor.

    Raises:
        ReductionError: torch has the reduction, but hpccoll does not.
    """
    kind, factor = given.__getstate__() if isinstance(given, dist.ReduceOp) else (given, None)
    name = kind.name if hasattr(kind, "name") else dist.ReduceOp.RedOpType(kind).name
    if name == "PREMUL_SUM":
        return Reduction("premul_sum", factor)
    if name not in _BY_KIND:
        raise ReductionError(f"hpccoll has no reduction {name}; it has {', '.join(_BY_KIND)} and PREMUL_SUM")
    return _BY_KIND[name]
