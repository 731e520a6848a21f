"""The reductions, by torch.distributed's names, and which element types each is defined for.

`avg` is a sum divided by the number of ranks in the end; `premul_sum` scales each rank's input by its own factor
first. Everything in between is one binary function of equal arrays, which each array module provides by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.errors import ReductionError, UnknownNameError
from hpccoll.runtime.arrays.dtypes import DTYPES, DType

# How each reduction combines two operands: NumPy's, CuPy's and torch's common function names.
FUNCTIONS = {
    "sum": "add",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
    "avg": "add",
    "premul_sum": "add",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}
_KINDS = {
    "sum": "ifc",
    "prod": "ifc",
    "min": "bif",
    "max": "bif",
    "avg": "fc",
    "premul_sum": "ifc",
    "band": "bi",
    "bor": "bi",
    "bxor": "bi",
}
_FITS = {"i": "bi", "f": "bif", "c": "bifc"}  # factors that each kind of elements can be scaled by
_REMEDY = {
    "b": "use bor (any), band (all) or bxor, or cast to an integer dtype",
    "i": "sum and divide, or cast to a floating dtype",
    "f": "bitwise operations need bool or integers",
    "c": "complex numbers have no order and no bits: use sum, prod or avg",
}


@dataclass(frozen=True, slots=True, eq=False)  # factors may be arrays, which do not compare to one truth value
class Reduction:
    """A reduction by name; `factor` is premul_sum's own factor (a number, or an array like the buffer)."""

    name: str
    factor: Any = None

    @classmethod
    def parse(cls, given: str | Reduction) -> Reduction:
        """Return the reduction for a name, or raise UnknownNameError with the valid ones."""
        if isinstance(given, Reduction):
            return given
        if given not in FUNCTIONS:
            raise UnknownNameError("reduction", str(given), list(FUNCTIONS))
        return cls(given)

    @property
    def function(self) -> str:
        """The binary function that combines two operands."""
        return FUNCTIONS[self.name]

    def require(self, dtype: DType, shape: tuple[int, ...] = ()) -> None:
        """Raise ReductionError where this reduction is not defined for an array of this dtype and shape."""
        if dtype.kind not in _KINDS[self.name]:
            why = _REMEDY[dtype.kind]
            raise ReductionError(f"reduction {self.name!r} is not defined for dtype {dtype.name}: {why}")
        if self.name != "premul_sum":
            return
        if self.factor is None:
            raise ReductionError("premul_sum needs a factor: pass op=hpccoll.premul_sum(0.5)")
        factor = self.factor if hasattr(self.factor, "dtype") else np.asarray(self.factor)
        kind = _kind(str(factor.dtype).removeprefix("torch."))
        if kind not in _FITS[dtype.kind]:
            raise ReductionError(
                f"premul_sum by a factor of dtype {factor.dtype} does not fit dtype {dtype.name}: cast one of them"
            )
        if factor.shape and not _broadcasts(tuple(factor.shape), shape):
            raise ReductionError(
                f"premul_sum: a factor of shape {tuple(factor.shape)} does not broadcast against x of shape {shape}"
            )


def _kind(name: str) -> str:
    return DTYPES[name].kind if name in DTYPES else "none"


def _broadcasts(factor: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(factor, shape) == shape
    except ValueError:
        return False


def premul_sum(factor: Any) -> Reduction:
    """Return the reduction that scales this rank's input by `factor` before summing.

    Args:
        factor: a number, or an array that broadcasts against the buffer; it may differ by rank.
    """
    return Reduction("premul_sum", factor)
