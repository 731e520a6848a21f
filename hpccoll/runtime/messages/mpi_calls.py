"""Translates collectives to MPI: datatypes, operations, and mpi4py's methods with the order of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.errors import ReductionError
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arrays import Buffer, Combine, DType, Reduction, combine_into
from hpccoll.runtime.collective_call import CollectiveCall

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
# Methods of mpi4py for blocks of different sizes.
UNEVEN_METHODS = {
    Operation.ALL_GATHER: "Allgatherv",
    Operation.REDUCE_SCATTER: "Reduce_scatter",
    Operation.GATHER: "Gatherv",
    Operation.SCATTER: "Scatterv",
    Operation.ALL_TO_ALL: "Alltoallv",
}


def explain_refusal(operation: Operation, dtype: DType, reduction: Reduction) -> str:
    """Return why the MPI library's result may differ from hpccoll's by more than rounding; empty if it cannot.

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

    For a reduction by a user's function, the datatype only has the size of the elements.
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


def order_arguments(
    operation: Operation,
    source: Any,
    result: Any,
    op: MPI.Op | None,
    root: int,
    in_place: bool,
    count: Count = 0,
) -> tuple[Any, ...]:
    """Return the arguments of mpi4py's method `METHODS[operation]`; `op` and `root` are ignored if not needed.

    Args:
        source: mpi4py's specification of the input: memory, elements of one block or of the vector, datatype; or None.
        result: the specification of the output, or None.
        in_place: whether input and output share memory. In place, MPI's reduce_scatter writes a rank's block
            to the front of the rank's input, not to the block's own position.
        count: if blocks differ in size, the number of elements of each block.
    """
    sent = MPI.IN_PLACE if in_place else source
    if operation is Operation.BARRIER:
        return ()
    if operation is Operation.BROADCAST:
        return result or source, root
    if operation is Operation.EXSCAN and result is None:
        return MPI.IN_PLACE, source, op  # on rank 0, MPI leaves a buffer in place unchanged
    if operation is Operation.SCATTER:
        return source, MPI.IN_PLACE if in_place else result, root
    ops = (op,) if operation.reduces else ()
    roots = (root,) if operation.has_root else ()
    if operation is Operation.REDUCE_SCATTER and isinstance(count, tuple):
        return sent, result, count, op
    return (sent, result, *ops, *roots)


def get_method(operation: Operation, count: Count) -> str:
    """Return the name of mpi4py's method for an operation on equal blocks, or on blocks of different sizes."""
    return METHODS[operation] if isinstance(count, int) else UNEVEN_METHODS[operation]


def specify_counts(operation: Operation, count: Count, rank: int, *, skips_own: bool = False) -> tuple[Any, Any]:
    """Return the numbers of elements of input and output for mpi4py: one number, or a list with one per block.

    mpi4py reads the items of a list faster than those of an array, and takes a tuple for counts and displacements.
    Of an exchange, `skips_own` leaves out the block that this rank would send to itself.
    """
    if isinstance(count, int):
        return count, count
    if skips_own:
        sent, received = (_skip(each, rank) for each in (count[: len(count) // 2], count[len(count) // 2 :]))
        return sent, received
    blocks = list(count)
    match operation:
        case Operation.ALL_TO_ALL:
            return blocks[: len(count) // 2], blocks[len(count) // 2 :]
        case Operation.REDUCE_SCATTER:
            return sum(count), count[rank]
        case Operation.SCATTER:
            return blocks, count[rank]
        case _:
            return count[rank], blocks


def list_sizes(operation: Operation, count: Count, rank: int, *, skips_own: bool) -> tuple[int, NDArray[np.int32]]:
    """Return the elements of this rank's block (or of every block or vector), and the sizes that `MpiCall` takes."""
    if isinstance(count, int):
        return count, np.empty(0, np.int32)
    ranks = len(count) // 2 if operation is Operation.ALL_TO_ALL else len(count)
    counts = np.array(count, np.int32).reshape(-1, ranks)
    begins = np.cumsum(counts, axis=1, dtype=np.int32) - counts
    if skips_own:
        counts[:, rank] = 0
    return int(counts[0, rank]), np.stack([counts, begins], axis=1).ravel()


def locate_own_block(own: tuple[slice, slice] | None, itemsize: int) -> tuple[int, int, int]:
    """Return where a block of `find_own_block` begins in input and output, and its size, in bytes."""
    if own is None:
        return 0, 0, 0
    sent, received = own
    return sent.start * itemsize, received.start * itemsize, (sent.stop - sent.start) * itemsize


def find_own_block(count: Count, itemsize: int, rank: int) -> tuple[slice, slice] | None:
    """Return this rank's block for itself in the input and output of an uneven exchange, if hpccoll should copy it.

    MPICH moves such a block through shared memory, which takes several times as long as a copy. No other rank depends
    on who copies the block, so each rank decides by itself. Return None for blocks of less than `LEAST_OWN_BYTES`.
    """
    if isinstance(count, int):
        return None
    ranks = len(count) // 2
    own, at, out_at = count[rank], sum(count[:rank]), sum(count[ranks : ranks + rank])
    if own * itemsize < LEAST_OWN_BYTES or count[ranks + rank] != own:
        return None
    return slice(at, at + own), slice(out_at, out_at + own)


def _skip(blocks: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """Return the counts of adjacent blocks without that of `rank`, and the displacements of all blocks."""
    return [*blocks[:rank], 0, *blocks[rank + 1 :]], list(accumulate(blocks[:-1], initial=0))


def specify_buffers(
    call: CollectiveCall, source: Buffer | None, result: Buffer | None, counts: tuple[Any, Any]
) -> tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """Return mpi4py's specifications of input and output: memory, counts of `specify_counts`, and datatype."""
    datatype = get_datatype(call.operation, call.dtype, call.reduction)
    # MPICH refuses equal addresses of input and output, also of an empty block in place.
    is_alone = source is None or source.nbytes or not (result and result.nbytes)
    sent = received = None
    if source is not None:
        sent = MPI.buffer.fromaddress(source.address if is_alone else 0, source.nbytes), counts[0], datatype
    if result is not None:
        received = MPI.buffer.fromaddress(result.address if result.nbytes else 0, result.nbytes), counts[1], datatype
    return sent, received
