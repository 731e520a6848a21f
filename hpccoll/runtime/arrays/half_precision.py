"""Float16 and bfloat16 on the host: the bits that NumPy and ml_dtypes give, at more than a tenth of float32's speed.

NumPy and ml_dtypes convert these types one number at a time. Three ways lead to the same bits:

- torch's kernels on views of the same memory, where torch is installed. They convert whole vectors of numbers.
- bfloat16 without torch: widened to float32 block by block in cache, computed there and rounded back. All but the
  arithmetic is ml_dtypes' own conversion, whose loop from bfloat16 is vectorized.
- NumPy's own function: short pieces, float16 without torch, min and max without torch.

Why the bits agree: all of them compute a sum, product or quotient in float32 and round it to nearest even. A machine
that rounds float16 once, in its own instructions, gives the same (S. Figueroa, "When is double rounding innocuous?",
1995: float32 has 24 bits, at least 2p + 2 for p = 11). NaNs stay NaNs; nobody promises their payload. Minimum and
maximum do not round, but of +0 and -0 they return either one: torch's vector loop, its loop over the rest, NumPy and
ml_dtypes all differ. Where both zeros meet, NumPy's own function is asked.
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
ARITHMETIC = {"add": "add", "multiply": "mul", "divide": "div"}  # NumPy's names and torch's
KERNELS = ARITHMETIC | {"minimum": "minimum", "maximum": "maximum"}
FEWEST = 2048  # elements: 4 us by ml_dtypes and 14 us by NumPy, 2 us by torch
FEWEST_ORDERED = 4096  # elements, for min and max, where looking for -0 costs 4 us more
WORTH_IMPORTING = 16384  # elements bound so far: torch takes a second to import
PIECE = 32768  # elements: torch's grain size, up to which a kernel stays in the calling thread
BLOCK = 32768  # elements widened at a time: their scratch of 256 KiB stays in a core's cache
FEWEST_WIDENED = 16384  # elements for which a block's fixed cost of 6 us is well below what it saves
_MINUS_ZERO = np.int16(-32768)  # its bits, and the least of all int16
_MAGNITUDE = np.int16(32767)


class HalfPrecision:
    """Binds functions of float16 and bfloat16 arrays; knows whether torch is to be used, and imports it when it pays.

    Args:
        torch: whether to use it where it is installed.
    """

    __slots__ = ("_bound", "_torch")

    def __init__(self, *, torch: bool = True) -> None:
        self._torch: Any = None if torch else False  # None: not looked for so far; False: not to be used
        self._bound = 0

    def bind(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall | None:
        """Bind out = function(left, right) with the bits of NumPy's function, or return None where NumPy's is best.

        Args:
            function: NumPy's name.
            left: as long as `out`, of the same dtype.
            right: like `left`, or one number of the same dtype, of shape ().
            out: written; the memory of an operand or apart from both.

        Cost: 20-40 us and 4 us for each PIECE; the one that reaches WORTH_IMPORTING imports torch (a second, once).
        """
        fewest = FEWEST if function in ARITHMETIC else FEWEST_ORDERED
        if len(out) < fewest or function not in KERNELS or not _plain(out, left, right):
            return None
        self._bound += len(out)
        torch = self._kernels()
        if torch:
            with torch.inference_mode(mode=False):  # tensors made inside could not be written outside
                return _kernel(torch, function, left, right, out)
        if function not in ARITHMETIC or NAMES[out.dtype] != "bfloat16" or len(out) < FEWEST_WIDENED:
            return None
        return partial(_widened, getattr(np, function), left, right, out)

    def _kernels(self) -> Any:
        if self._torch is None and ("torch" in sys.modules or self._bound >= WORTH_IMPORTING):
            self._torch = _import_torch() or False
        return self._torch


def _import_torch() -> Any:
    """Return torch, or None where it is not installed or does not work with this NumPy: found out by trying."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch

            for dtype in NAMES:
                one, out = np.ones(PIECE, dtype), np.zeros(PIECE, dtype)
                _kernel(torch, "add", one, one, out)()
                if (out != one + one).any():
                    return None
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError):
        return None
    return torch


def _plain(out: FlatArray, *operands: FlatArray) -> bool:
    """Whether all are aligned, and each operand is the very memory of `out` or apart from it."""
    start = out.__array_interface__["data"][0]
    for each in operands:
        other = each.__array_interface__["data"][0]
        if other != start and other < start + out.nbytes and start < other + each.nbytes:
            return False
    return all(each.flags.aligned for each in (out, *operands))


def _kernel(torch: Any, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
    """Bind torch's kernel, piece by piece, on views that keep nothing alive but the arrays that they are given."""
    dtype = getattr(torch, NAMES[out.dtype])
    one, other, result = (torch.from_numpy(_writable(each).view(np.int16)).view(dtype) for each in (left, right, out))
    kernel = getattr(torch, KERNELS[function])
    if len(out) <= PIECE:
        step = partial(kernel, one, other, out=result)
    else:
        others = other.split(PIECE) if right.ndim else repeat(other)
        pieces = zip(one.split(PIECE), others, result.split(PIECE), strict=False)
        step = partial(run_all, [partial(kernel, *operands, out=piece) for *operands, piece in pieces])
    return step if function in ARITHMETIC else partial(_ordered, step, getattr(np, function), left, right, out)


def _writable(flat: FlatArray) -> FlatArray:
    """The same memory without the read-only flag, of which torch.from_numpy warns though it is only read."""
    if flat.flags.writeable:
        return flat
    return view_host_memory(flat.__array_interface__["data"][0], flat.nbytes, owner=flat).view(flat.dtype)


def _ordered(
    kernel: BoundCall, function: Callable[..., FlatArray], left: FlatArray, right: FlatArray, out: FlatArray
) -> None:
    """Run a minimum or maximum, and set right what it made of +0 beside -0."""
    one, other = left.view(np.int16), right.view(np.int16)
    if np.minimum.reduce(one) != _MINUS_ZERO and np.minimum.reduce(other) != _MINUS_ZERO:
        kernel()
        return
    zeros = np.flatnonzero(((one ^ other) == _MINUS_ZERO) & ((one & _MAGNITUDE) == 0))
    settled = function(left[zeros], right[zeros])  # before `out`, which may be an operand, is written
    kernel()
    out[zeros] = settled


def _widened(function: Callable[..., FlatArray], left: FlatArray, right: FlatArray, out: FlatArray) -> None:
    """Compute in float32 and round back, a block at a time; scratch of its own, since threads may run side by side."""
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
