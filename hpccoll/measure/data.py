"""Reproducible inputs of benchmarks, and the expected results by which the output of every engine is validated.

Inputs repeat every PERIOD elements (a prime), so that large inputs are cheap to make and neighbouring chunks differ.
Every rank computes its expected result without communication, because it can make the inputs of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.arrays import FUNCTIONS, DType

HostArray = NDArray[Any]
PERIOD = 65521


@dataclass(frozen=True, slots=True)
class ExpectedResult:
    """A rank's expected output `values`, and the allowed error `bound` of each element; None allows no error."""

    values: HostArray
    bound: HostArray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, count: int) -> ExpectedResult:
        """Return the expected result of the first `count` elements."""
        return ExpectedResult(self.values[:count], None if self.bound is None else self.bound[:count])

    def count_wrong(self, output: HostArray) -> int:
        """Return how many elements of `output` differ from `values` by more than `bound`.

        If `bound` is None, the elements must be equal, and two NaNs count as equal.
        """
        if self.bound is None:
            same = output == self.values
            if output.dtype.kind in "fcV":
                same |= np.isnan(output) & np.isnan(self.values)
            return int(output.size - np.count_nonzero(same))
        with np.errstate(invalid="ignore"):  # signalling NaNs in a wrong output
            wide = output.astype(self.values.dtype)
            return int(output.size - np.count_nonzero(np.abs(wide - self.values) <= self.bound))


def make_input(dtype: DType, seed: int, rank: int, count: int, op: str = "sum") -> HostArray:
    """Return the input of `rank` for reduction `op`: a new array of `count` pseudo-random elements.

    The elements differ between ranks, and between seeds. Floats lie in [-1, 1), or near 1 for products, so that no
    result overflows. Sums and products of integers may overflow, which all engines handle by wrapping around.
    """
    return repeat(make_period(dtype, seed, rank, count, op), count)


def repeat(period: HostArray, count: int) -> HostArray:
    """Return a new array of `count` elements that repeats `period`."""
    return np.resize(period, count) if count else np.empty(0, period.dtype)


def make_period(dtype: DType, seed: int, rank: int, count: int, op: str = "sum") -> HostArray:
    """Return the first elements of the input of `rank`, at most PERIOD, which the input of `count` elements repeats.

    Inputs are periodic, so that they can be checked without a second copy. The arguments are those of `make_input`.
    """
    rng = np.random.default_rng((seed, rank))
    size = min(count, PERIOD)
    if dtype.kind == "b":
        period: HostArray = rng.integers(0, 2, size).astype(np.bool_)
    elif dtype.kind == "i":
        period = rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    else:
        period = rng.uniform(-1, 1, size)
        if op == "prod":
            period = 1 + period / 8
        if dtype.kind == "c":
            period = period + 1j * rng.uniform(-1, 1, size) / (8 if op == "prod" else 1)
    return period.astype(dtype.numpy)


def get_reduction_function(op: str) -> Callable[[HostArray, HostArray], HostArray]:
    """Return the NumPy function that reduces two arrays elementwise by reduction `op`; `np.add` for `avg`."""
    function: Callable[[HostArray, HostArray], HostArray] = getattr(np, FUNCTIONS[op])
    return function


def expect_reduced(inputs: Iterable[HostArray], op: str) -> ExpectedResult:
    """Return the expected result of reducing `inputs` by the reduction `op`.

    The result is exact for booleans, integers, min and max, and computed in double precision otherwise. The error bound
    is 4 (n + 1) eps times the result of reducing the inputs' absolute values, and holds for any order in which n inputs
    are reduced. `inputs` may be a generator: only one input is held at a time.
    """
    remaining = iter(inputs)
    first = next(remaining)
    dtype, n = first.dtype, 1
    combine = get_reduction_function(op)
    exact = dtype.kind in "biu" or op in ("min", "max")
    wide = dtype if exact else np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    total = first.astype(wide)
    magnitude = None if exact else np.abs(total)
    for n, array in enumerate(remaining, 2):  # noqa: B007 - n is the number of inputs
        widened = array.astype(wide)
        total = combine(total, widened)
        if magnitude is not None:
            magnitude = combine(magnitude, np.abs(widened))
    if magnitude is None:
        return ExpectedResult(total)
    eps = 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)
    scale = n if op == "avg" else 1
    # The factor 4 covers the rounding errors of a complex product; n + 1 covers n inputs and the division of `avg`.
    return ExpectedResult(total / scale, (4 * (n + 1)) * eps * magnitude / scale)
