"""Fast element-wise functions of float16 and bfloat16 arrays on the host, with the same bits as NumPy's functions.

NumPy and ml_dtypes are slow because they convert float16 and bfloat16 one number at a time. `HalfPrecision` chooses
among three implementations that give the same bits.

- With torch installed, torch's kernels run on views of the same memory and convert whole vectors.
- Without torch, blocks of bfloat16 are converted to float32 by ml_dtypes, computed in the cache, and rounded back.
- NumPy's own function is used for short arrays and, without torch, for float16, minimum and maximum.

The bits agree because all three implementations compute a sum, product or quotient in float32 and round it to nearest
even. A processor with float16 arithmetic, which rounds only once, gives the same bits, because float32's 24 bits are at
least 2p + 2 for float16's p = 11 bits (Figueroa, "When is double rounding innocuous", 1995). NaNs stay NaNs, with
unspecified payload. Minimum and maximum do not round, but for a pair of +0 and -0 the implementations may return
different zeros. NumPy's function therefore computes the minimum or maximum of each pair of +0 and -0.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from hpccoll.runtime.arrays.dtypes import get_dtype
from hpccoll.runtime.arrays.interface import BoundCall, FlatArray, run_all, view_host_memory

NAMES = {get_dtype(name).numpy: name for name in ("float16", "bfloat16")}
ARITHMETIC = {"add": "add", "multiply": "mul", "divide": "div"}  # NumPy's name of each function, and torch's
KERNELS = ARITHMETIC | {"minimum": "minimum", "maximum": "maximum"}
FEWEST = 2048  # elements: 4 us by ml_dtypes and 14 us by NumPy, 2 us by torch
FEWEST_ORDERED = 4096  # elements, for min and max, where looking for -0 costs 4 us more
WORTH_IMPORTING = 16384  # elements: torch is imported (one second) once this many have been bound in total
PIECE = 32768  # elements: up to this many (torch's grain size), a torch kernel runs in the calling thread
BLOCK = 32768  # elements widened at a time: their scratch of 256 KiB stays in a core's cache
FEWEST_WIDENED = 16384  # elements: from this many on, a block saves much more than its fixed cost of 6 us
_MINUS_ZERO = np.int16(-32768)  # the bits of -0, and the smallest int16
_MAGNITUDE = np.int16(32767)


class HalfPrecision:
    """Binds functions to float16 and bfloat16 arrays; if `torch` is true, torch may be imported for large arrays."""

    __slots__ = ("_bound", "_torch")

    def __init__(self, *, torch: bool = True) -> None:
        self._torch: Any = None if torch else False  # None: not yet imported; False: not used
        self._bound = 0

    def bind(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall | None:
        """Bind out = function(left, right) with the bits of NumPy's function; return None if NumPy's is the fastest.

        All arrays have the same dtype and length, except that `right` may be one number of shape (). An operand may be
        `out` itself; if an operand overlaps `out` in another way, the result is None.
        Cost of binding: 20-40 us, and 4 us for every PIECE elements. Importing torch takes a second, once per process.
        """
        fewest = FEWEST if function in ARITHMETIC else FEWEST_ORDERED
        if len(out) < fewest or function not in KERNELS or not _is_supported(out, left, right):
            return None
        self._bound += len(out)
        torch = self._get_torch()
        if torch:
            with torch.inference_mode(mode=False):  # tensors made in inference mode could not be written outside it
                return _bind_torch(torch, function, left, right, out)
        if function not in ARITHMETIC or NAMES[out.dtype] != "bfloat16" or len(out) < FEWEST_WIDENED:
            return None
        return partial(_run_widened, getattr(np, function), left, right, out)

    def _get_torch(self) -> Any:
        """Return torch, None if it is not yet worth importing, or False if it is unusable or must not be used."""
        if self._torch is None and ("torch" in sys.modules or self._bound >= WORTH_IMPORTING):
            self._torch = _import_torch() or False
        return self._torch


def _import_torch() -> Any:
    """Return torch, or None if torch is not installed or fails a trial addition with this NumPy."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch

            for dtype in NAMES:
                one, out = np.ones(PIECE, dtype), np.zeros(PIECE, dtype)
                _bind_torch(torch, "add", one, one, out)()
                if (out != one + one).any():
                    return None
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError):
        return None
    return torch


def _is_supported(out: FlatArray, *operands: FlatArray) -> bool:
    """Whether all arrays are aligned, and each operand either starts where `out` starts or does not overlap `out`."""
    start = out.__array_interface__["data"][0]
    for operand in operands:
        other = operand.__array_interface__["data"][0]
        if other != start and other < start + out.nbytes and start < other + operand.nbytes:
            return False
    return all(array.flags.aligned for array in (out, *operands))


def _bind_torch(torch: Any, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
    """Bind torch's kernel to views of the arrays, in pieces of PIECE elements."""
    dtype = getattr(torch, NAMES[out.dtype])
    one, other, result = (torch.from_numpy(_writable(each).view(np.int16)).view(dtype) for each in (left, right, out))
    kernel = getattr(torch, KERNELS[function])
    if len(out) <= PIECE:
        step = partial(kernel, one, other, out=result)
    else:
        others = other.split(PIECE) if right.ndim else repeat(other)
        pieces = zip(one.split(PIECE), others, result.split(PIECE), strict=False)
        step = partial(run_all, [partial(kernel, *operands, out=piece) for *operands, piece in pieces])
    return step if function in ARITHMETIC else partial(_run_ordered, step, getattr(np, function), left, right, out)


def _writable(flat: FlatArray) -> FlatArray:
    """Return a writable view of the same memory, because torch.from_numpy warns about read-only arrays."""
    if flat.flags.writeable:
        return flat
    return view_host_memory(flat.__array_interface__["data"][0], flat.nbytes, owner=flat).view(flat.dtype)


def _run_ordered(
    kernel: BoundCall, function: Callable[..., FlatArray], left: FlatArray, right: FlatArray, out: FlatArray
) -> None:
    """Run a minimum or maximum, then correct the results for pairs of +0 and -0."""
    one, other = left.view(np.int16), right.view(np.int16)
    if np.minimum.reduce(one) != _MINUS_ZERO and np.minimum.reduce(other) != _MINUS_ZERO:
        kernel()
        return
    zeros = np.flatnonzero(((one ^ other) == _MINUS_ZERO) & ((one & _MAGNITUDE) == 0))
    correct = function(left[zeros], right[zeros])  # computed before `out` is written, because `out` may be an operand
    kernel()
    out[zeros] = correct


def _run_widened(function: Callable[..., FlatArray], left: FlatArray, right: FlatArray, out: FlatArray) -> None:
    """Compute in float32 and round the result, block by block. Each call has scratch of its own, for thread safety."""
    wide = np.empty((2, min(BLOCK, len(out))), np.float32)
    number = None if right.ndim else right.astype(np.float32)
    for start in range(0, len(out), BLOCK):
        cut = slice(start, min(start + BLOCK, len(out)))
        one, other = wide[:, : cut.stop - start]
        np.copyto(one, left[cut])
        if number is None:
            np.copyto(other, right[cut])
        function(one, other if number is None else number, out=one)
        np.copyto(out[cut], one, casting="unsafe")
