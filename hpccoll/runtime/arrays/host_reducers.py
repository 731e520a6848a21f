"""The reductions that native programs compute: NumPy's inner loops, half precision in C, and functions of the user.

NumPy's ufuncs have an inner loop in C for each element type. A native program calls these loops directly, so its
results have NumPy's bits, which are those of `replay`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hpccoll.native import Reducer
from hpccoll.runtime.arrays.dtypes import DType
from hpccoll.runtime.arrays.interface import combine_into, view_host_memory
from hpccoll.runtime.arrays.reductions import Combine

_HALF_TYPES = {"float16": 0, "bfloat16": 1}  # the numbers of `HalfType` and `Function` in native/reductions.h
_HALF_FUNCTIONS = {"add": 0, "multiply": 1, "minimum": 2, "maximum": 3, "divide": 4}


def make_reducer(function: str | Combine, dtype: DType, number: Any = None) -> Reducer:
    """Return the native function out = left op right of arrays of an element type.

    Args:
        function: NumPy's name of a function, such as `add`, or the user's own function.
        number: the right operand of all elements, for a function by name; None if the right operand is an array.
    """
    if not isinstance(function, str):
        return Reducer(_bind_addresses(function, dtype), dtype.itemsize, -1, -1)
    with np.errstate(all="ignore"):  # a number that overflows is infinite on all ranks
        content = None if number is None else np.asarray(number).astype(dtype.numpy).tobytes()
    return _make_named(function, dtype, content)


@lru_cache(maxsize=256)
def _make_named(function: str, dtype: DType, number: bytes | None) -> Reducer:
    """Return the reducer for NumPy's name of a function; the right operand is `number` unless it is None."""
    half = _HALF_TYPES.get(dtype.name, -1)
    if half >= 0:
        return Reducer(_HALF_FUNCTIONS[function], dtype.itemsize, -1, half, number)
    # In place, NumPy multiplies a single complex number without fused multiply-add, which changes the bits.
    copies_single = dtype.kind == "c" and function == "multiply"
    return Reducer(getattr(np, function), dtype.itemsize, dtype.numpy.num, -1, number, copies_single)


def _bind_addresses(combine: Combine, dtype: DType) -> Any:
    """Return the user's function as a function of addresses and the number of elements."""
    from contextvars import Context

    context = Context()
    context.run(np.seterr, all="ignore")  # an exception on one rank would block the other ranks

    def run(left: int, right: int, out: int, count: int) -> None:
        """Reduce `count` elements."""
        nbytes = count * dtype.itemsize
        arrays = [view_host_memory(address, nbytes).view(dtype.numpy) for address in (left, right, out)]
        context.copy().run(combine_into, np.copyto, combine, *arrays)

    return run
