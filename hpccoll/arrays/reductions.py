"""Reductions by torch.distributed's names, with the element types for which each reduction is defined.

Each reduction combines elements by a binary function that every array module provides by name. `avg` divides the sum by
the number of ranks; `premul_sum` first scales each rank's input by that rank's factor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hpccoll.arrays.dtypes import DTYPES, DType
from hpccoll.errors import ReductionError, UnknownNameError

# For each reduction: its binary function's name in NumPy, CuPy and torch, and the kinds of its element types.
_REDUCTIONS = {
    "sum": ("add", "ifc"),
    "prod": ("multiply", "ifc"),
    "min": ("minimum", "bif"),
    "max": ("maximum", "bif"),
    "avg": ("add", "fc"),
    "premul_sum": ("add", "ifc"),
    "band": ("bitwise_and", "bi"),
    "bor": ("bitwise_or", "bi"),
    "bxor": ("bitwise_xor", "bi"),
}
Combine: TypeAlias = Callable[[Any, Any], Any]  # returns the reduction of two 1-D arrays as a new array
FUNCTIONS = {name: function for name, (function, _) in _REDUCTIONS.items()}
_KINDS = {name: kinds for name, (_, kinds) in _REDUCTIONS.items()}
_MPI_NAMES = ("sum", "prod", "min", "max", "band", "bor", "bxor")
_TORCH_NAMES = {"PRODUCT": "prod"}
_FITS = {"i": "bi", "f": "bif", "c": "bifc"}  # kinds of factors by which elements of each kind can be scaled
_REMEDY = {
    "b": "use bor (any), band (all) or bxor, or cast to an integer dtype",
    "i": "sum and divide, or cast to a floating dtype",
    "f": "bitwise operations need bool or integers",
    "c": "complex numbers have no order and no bits: use sum, prod or avg",
}


@dataclass(frozen=True, slots=True, eq=False)  # factors may be arrays, which do not compare to a single bool
class Reduction:
    """A reduction by name; `factor` is for premul_sum: a number, or an array that broadcasts to the buffer.

    `combine` is the function of a user's own reduction (see `from_function`), which need not be `commutative`.

    Example:
        >>> comm.all_reduce(np.array([2.0]), op=hpccoll.Reduction("max"))
        array([2.])
    """

    name: str
    factor: Any = None
    combine: Combine | None = None
    commutative: bool = True

    @classmethod
    def from_function(cls, function: Combine, *, name: str | None = None, commutative: bool = True) -> Reduction:
        """Return a reduction by a function of two arrays, which returns their elementwise reduction as a new array.

        The functions of all ranks must compute the same result. Make a reduction once and use it in many calls.
        Until a communicator is closed, its caches keep the function and all objects to which the function refers.

        Args:
            function: takes two 1-D arrays of equal length and dtype (NumPy arrays, or CUDA arrays of the user's
                library), which it must not change; must be associative, up to rounding. A ufunc of NumPy, such as
                `np.hypot`, reduces host memory without calls of Python.
            name: the name in messages (default: the function's name).
            commutative: whether function(a, b) equals function(b, a); if not, the data of the ranks is reduced in the
                order of the ranks.

        Raises:
            ReductionError: `function` cannot be called, or has no hash.
        """
        given: object = function
        if not callable(given) or not isinstance(given, Hashable):
            raise ReductionError(
                f"Reduction.from_function: {function!r} is no function that a cache can find; pass a function of two "
                "arrays, or an object with the methods __call__ and __hash__"
            )
        return cls(name or str(getattr(function, "__name__", type(function).__name__)), None, function, commutative)

    @classmethod
    def parse(cls, given: Any) -> Reduction:
        """Return the reduction for a name, an `MPI.Op` or a `torch.distributed.ReduceOp`.

        Raises:
            UnknownNameError: no reduction has this name; the message lists the valid names.
            ReductionError: no reduction is equal to this `MPI.Op`.
        """
        if isinstance(given, Reduction):
            return given
        mpi, distributed = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch.distributed")
        if mpi is not None and isinstance(given, mpi.Op):
            return cls(_find_reduction_name(mpi, given))
        if distributed is not None and isinstance(given, distributed.ReduceOp):
            kind = getattr(given, "op", given).name
            factor = given.factor if kind == "PREMUL_SUM" and hasattr(given, "factor") else None
            return cls(_TORCH_NAMES.get(kind, kind.lower()), factor)
        if not isinstance(given, str) or given not in FUNCTIONS:
            raise UnknownNameError("reduction", str(given), list(FUNCTIONS))
        return cls(given)

    @property
    def divides(self) -> bool:
        """Whether the sum over the ranks is divided by the number of ranks (`avg`)."""
        return self.name == "avg" and self.combine is None

    @property
    def scales(self) -> bool:
        """Whether each rank's input is multiplied by the rank's factor before the sum (`premul_sum`)."""
        return self.name == "premul_sum" and self.combine is None

    @property
    def function(self) -> str | Combine:
        """The user's own function, or the name of the binary function in NumPy, CuPy and torch, such as `add`."""
        return self.combine or FUNCTIONS[self.name]

    @property
    def key(self) -> tuple[object, ...]:
        """A key for caches: reductions without factors compute the same if their keys are equal."""
        return self.name, self.combine, self.commutative

    def require(self, dtype: DType, shape: tuple[int, ...] = ()) -> None:
        """Raise ReductionError unless this reduction is defined for an array of this dtype and shape."""
        if self.combine is not None:
            if dtype.numpy.kind == "V":
                raise ReductionError(f"reduction {self.name!r}: NumPy has no {dtype.name}; cast to float32")
            return
        if dtype.kind not in _KINDS[self.name]:
            remedy = _REMEDY[dtype.kind]
            raise ReductionError(f"reduction {self.name!r} is not defined for dtype {dtype.name}: {remedy}")
        if not self.scales:
            return
        if self.factor is None:
            raise ReductionError("premul_sum needs a factor: pass op=hpccoll.premul_sum(0.5)")
        factor = self.factor if hasattr(self.factor, "dtype") else np.asarray(self.factor)
        factor_dtype = DTYPES.get(str(factor.dtype).removeprefix("torch."))
        if factor_dtype is None or factor_dtype.kind not in _FITS[dtype.kind]:
            raise ReductionError(
                f"premul_sum by a factor of dtype {factor.dtype} does not fit dtype {dtype.name}: cast one of them"
            )
        if factor.shape and not _broadcasts(tuple(factor.shape), shape):
            raise ReductionError(
                f"premul_sum: a factor of shape {tuple(factor.shape)} does not broadcast against x of shape {shape}"
            )


def normalize_reduction(given: Any) -> str | Reduction:
    """Return the name of a reduction, or the reduction itself if it has a factor or a function of the user.

    `given` is any value that `parse` accepts. Equal reductions without a factor or function have the same name, so that
    a cache can find calls by the result.
    """
    reduction = Reduction.parse(given)
    return reduction.name if reduction.factor is None and reduction.combine is None else reduction


def _find_reduction_name(mpi: Any, op: Any) -> str:
    """Return hpccoll's name, such as `sum`, of the reduction that equals an `MPI.Op`; ReductionError for others."""
    for name in _MPI_NAMES:
        if op == getattr(mpi, name.upper()):
            return name
    raise ReductionError(
        f"this MPI.Op has no counterpart in hpccoll; pass MPI.{', MPI.'.join(map(str.upper, _MPI_NAMES))}, or a name "
        "(for MPI.LAND, MPI.LOR and MPI.LXOR: band, bor and bxor on arrays of bool)"
    )


def _broadcasts(factor: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of shape `factor` broadcasts to shape `shape`."""
    try:
        return np.broadcast_shapes(factor, shape) == shape
    except ValueError:
        return False


def premul_sum(factor: Any) -> Reduction:
    """Return the reduction premul_sum, which multiplies this rank's input by `factor` before the sum.

    The factor is a number, or an array that broadcasts to the buffer; ranks may pass different factors.

    Example:
        >>> comm.all_reduce(np.ones(2), op=hpccoll.premul_sum(1 / comm.size))
        array([1., 1.])
    """
    return Reduction("premul_sum", factor)
