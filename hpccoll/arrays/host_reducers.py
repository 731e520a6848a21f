"""The reductions that the native extension computes: NumPy's loops, half precision in C, and other functions of users.

NumPy's ufuncs have an inner loop in C for each element type. The native extension calls NumPy's inner loops directly,
so its results equal those of NumPy, and of `hpccoll.plan.replay` (a plan run in Python), bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from typing import Any

import numpy as np

from hpccoll.arrays.dtypes import DType
from hpccoll.arrays.interface import combine_into
from hpccoll.arrays.reductions import Combine
from hpccoll.native import Reducer

_HALF_TYPES = {"float16": 0, "bfloat16": 1}  # the numbers of `HalfType` and `Function` in native/reductions.h
_HALF_FUNCTIONS = {"add": 0, "multiply": 1, "minimum": 2, "maximum": 3, "divide": 4}


def make_reducer(function: str | Combine, dtype: DType, number: Any = None) -> Reducer:
    """Return a `Reducer` of the native extension, which computes out = left op right for arrays of one element type.

    Args:
        function: NumPy's name of a function, such as `add`, or the user's own function.
        number: the right operand of all elements, for a function by name; None if the right operand is an array.
    """
    if not isinstance(function, str):
        if _has_inner_loop(function, dtype):
            return Reducer(function, dtype.itemsize, dtype.numpy.num, -1, None, copies_single=True)
        return Reducer(_take_buffers(function, dtype), dtype.itemsize, -1, -1)
    with np.errstate(all="ignore"):  # a number that overflows is infinite on all ranks
        content = None if number is None else np.asarray(number).astype(dtype.numpy).tobytes()
    return _make_named(function, dtype, content)


@lru_cache(maxsize=256)
def _make_named(function: str, dtype: DType, number: bytes | None) -> Reducer:
    """Return the `Reducer` for NumPy's name of a function.

    `number` is the right operand of all elements, as the bytes of one element; None if the right operand is an array.
    """
    half = _HALF_TYPES.get(dtype.name, -1)
    if half >= 0:
        return Reducer(_HALF_FUNCTIONS[function], dtype.itemsize, -1, half, number)
    # In place, NumPy multiplies a single complex number without fused multiply-add, which rounds differently.
    copies_single = dtype.kind == "c" and function == "multiply"
    return Reducer(getattr(np, function), dtype.itemsize, dtype.numpy.num, -1, number, copies_single)


def _has_inner_loop(function: Combine, dtype: DType) -> bool:
    """Whether a user's function is a ufunc of NumPy with an inner loop of `dtype` that raises no exception.

    Loops of other ufuncs, and that of `power` for integers, may take the GIL to raise an exception.
    """
    if not isinstance(function, np.ufunc) or getattr(np, function.__name__, None) is not function:
        return False
    if function is np.power or function.signature is not None:
        return False
    char = dtype.numpy.char
    return f"{char}{char}->{char}" in function.types


def _take_buffers(combine: Combine, dtype: DType) -> Callable[[Any, Any, Any], None]:
    """Return the user's function as a function of buffers: left operand, right operand and result."""
    context = Context()
    context.run(np.seterr, all="ignore")  # an exception on one rank would block the other ranks
    numpy_dtype = dtype.numpy

    def run(*buffers: Any) -> None:
        """Reduce the elements of the first two buffers into the third one."""
        arrays = [np.frombuffer(buffer, numpy_dtype) for buffer in buffers]
        context.copy().run(combine_into, np.copyto, combine, *arrays)

    return run
