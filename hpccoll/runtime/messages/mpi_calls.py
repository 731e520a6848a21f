"""Translates collectives to MPI: datatypes, operations, and the names of MPI's functions."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import Combine, DType, Reduction, combine_into
from hpccoll.errors import ReductionError
from hpccoll.plan import Count, Operation

OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
# MPI has only logical operations on booleans: logical "and" computes the minimum, "or" the maximum.
LOGICAL_OPS = {"min": "LAND", "max": "LOR", "band": "LAND", "bor": "LOR", "bxor": "LXOR"}
# Names of predefined datatypes. (mpi4py's `from_numpy_dtype` returns duplicates to be freed, and lacks bfloat16.)
DATATYPES = {
    "bool": "C_BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FLOAT16_T",
    "bfloat16": "BFLOAT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
# Operations without a reduction transfer elements as a datatype of equal size that every MPI library has.
MOVED_AS = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T", 16: "C_DOUBLE_COMPLEX"}
METHODS = {
    Operation.ALL_REDUCE: "Allreduce",
    Operation.REDUCE: "Reduce",
    Operation.BROADCAST: "Bcast",
    Operation.ALL_GATHER: "Allgather",
    Operation.REDUCE_SCATTER: "Reduce_scatter_block",
    Operation.GATHER: "Gather",
    Operation.SCATTER: "Scatter",
    Operation.ALL_TO_ALL: "Alltoall",
    Operation.SCAN: "Scan",
    Operation.EXSCAN: "Exscan",
    Operation.BARRIER: "Barrier",
}
LEAST_OWN_BYTES: Final = 32 * 2**10  # see `find_own_block`
# Names of the functions for blocks of different sizes.
UNEVEN_METHODS = {
    Operation.ALL_GATHER: "Allgatherv",
    Operation.REDUCE_SCATTER: "Reduce_scatter",
    Operation.GATHER: "Gatherv",
    Operation.SCATTER: "Scatterv",
    Operation.ALL_TO_ALL: "Alltoallv",
}


def explain_refusal(operation: Operation, dtype: DType, reduction: Reduction) -> str:
    """Return why the MPI library's result may differ from hpccoll's by more than rounding; "" if it cannot differ.

    Open MPI saturates sums of 8-bit and 16-bit integers (its issue 8045, which will not be fixed).
    """
    if not operation.reduces or reduction.combine is not None:
        return ""
    name = reduction.name
    if dtype.kind == "b":
        return "" if name in LOGICAL_OPS else f"MPI has no {name} of booleans"
    if dtype.kind == "i":
        if name == "sum" and dtype.itemsize < 4:
            return "some MPI libraries saturate sums of 8-bit and 16-bit integers, where NumPy wraps around"
        return "" if name in OPS else f"MPI has no {name} of integers that rounds as hpccoll does"
    if name in ("min", "max"):
        return f"MPI does not define {name} of NaN and of zeros of both signs, and hpccoll's result is NumPy's"
    if name not in ("sum", "prod", "avg"):
        return f"MPI has no {name} of floating-point numbers"
    return "not every MPI library reduces 16-bit floats" if dtype.kind == "f" and dtype.itemsize == 2 else ""


def get_datatype(operation: Operation, dtype: DType, reduction: Reduction | None = None) -> MPI.Datatype:
    """Return the MPI datatype of an operation's elements; DATATYPE_NULL if the library does not have it.

    If MPI does not compute (no reduction, or one by a user's function), the datatype matches the elements in size only.
    """
    computes = operation.reduces and (reduction is None or reduction.combine is None)
    datatype: MPI.Datatype = getattr(MPI, DATATYPES[dtype.name] if computes else MOVED_AS[dtype.itemsize])
    return datatype


class UserOps:
    """The MPI operations of users' own reductions, created at the first use and freed together.

    mpi4py allows 16 user-defined operations per process.
    """

    def __init__(self) -> None:
        self._ops: dict[object, MPI.Op] = {}

    def get(self, dtype: DType, reduction: Reduction) -> MPI.Op:
        """Return the MPI operation of a reduction, by a user's function or by name."""
        if reduction.combine is None:
            return get_op(dtype, reduction.name)
        key = reduction.key, dtype.name
        if key not in self._ops:
            function = partial(_combine_buffers, reduction.combine, dtype.numpy)
            try:
                self._ops[key] = MPI.Op.Create(function, commute=reduction.commutative)
            except RuntimeError as error:
                raise ReductionError(
                    f"reduction {reduction.name!r}: {error}; make each reduction once and use it in many calls, or "
                    "choose an algorithm other than mpi"
                ) from error
        return self._ops[key]

    def free(self) -> None:
        """Free all MPI operations; to be called before MPI is finalized."""
        while self._ops:
            self._ops.popitem()[1].Free()


def _combine_buffers(combine: Combine, dtype: np.dtype[Any], left: Any, out: Any, _: MPI.Datatype) -> None:
    """Reduce `left` and `out` into `out`, as MPI's user-defined operations do."""
    own = np.frombuffer(out, dtype)
    combine_into(np.copyto, combine, np.frombuffer(left, dtype), own, own)


def get_op(dtype: DType, reduction: str) -> MPI.Op:
    """Return the MPI operation of a reduction by name; for `avg`, return the sum, which the caller must divide."""
    name = "sum" if reduction == "avg" else reduction
    op: MPI.Op = getattr(MPI, (LOGICAL_OPS if dtype.kind == "b" else OPS)[name])
    return op


def get_method(operation: Operation, count: Count) -> str:
    """Return the name of MPI's function for equal blocks, or for blocks of different sizes, without `MPI_`."""
    return METHODS[operation] if isinstance(count, int) else UNEVEN_METHODS[operation]


def find_own_block(count: Count, itemsize: int, rank: int) -> tuple[int, int, int] | None:
    """Return the block that this rank sends to itself in an all_to_all of unequal blocks, if hpccoll should copy it.

    MPICH moves the block of a rank for itself through shared memory, which takes several times as long as a copy. Each
    rank decides by itself whether hpccoll or MPI copies the rank's own block, because no other rank depends on the
    decision.

    Returns:
        The offsets of the block in input and output, and its size, in bytes; None for fewer than `LEAST_OWN_BYTES`.
    """
    if isinstance(count, int):
        return None
    ranks = len(count) // 2
    own, at, out_at = count[rank], sum(count[:rank]), sum(count[ranks : ranks + rank])
    if own * itemsize < LEAST_OWN_BYTES or count[ranks + rank] != own:
        return None
    return at * itemsize, out_at * itemsize, own * itemsize
