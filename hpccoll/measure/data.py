"""Reproducible inputs, and the results that every engine must produce from them.

Inputs repeat with a prime period, so they are cheap to make at any size and neighbouring chunks differ. Every rank can
make every rank's input, and so computes the expected result without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import Operation
from hpccoll.runtime.arrays import FUNCTIONS, DType

Array = NDArray[Any]
PERIOD = 65521


@dataclass(frozen=True, slots=True)
class ExpectedResult:
    """A rank's expected output: exactly `values` if `bound` is None, else each element within its `bound`."""

    values: Array
    bound: Array | None = None

    def count_wrong(self, found: Array) -> int:
        """Return how many elements of `found` are not as expected (NaN equals NaN)."""
        if self.bound is None:
            same = found == self.values
            if found.dtype.kind in "fcV":
                same |= np.isnan(found) & np.isnan(self.values)
            return int(found.size - np.count_nonzero(same))
        wide = found.astype(self.values.dtype)
        return int(found.size - np.count_nonzero(np.abs(wide - self.values) <= self.bound))


def make_input(dtype: DType, seed: int, rank: int, count: int, op: str = "sum") -> Array:
    """Return the input of `rank`, shape (count,): reproducible, different on every rank.

    Floats lie in [-1, 1), or near 1 for products, so that no result overflows; integers use all bits and wrap alike
    everywhere.
    """
    rng = np.random.default_rng((seed, rank))
    size = min(count, PERIOD)
    if dtype.kind == "b":
        period: Array = rng.integers(0, 2, size).astype(np.bool_)
    elif dtype.kind == "i":
        period = rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    else:
        period = rng.uniform(-1, 1, size)
        if op == "prod":
            period = 1 + period / 8
        if dtype.kind == "c":
            period = period + 1j * rng.uniform(-1, 1, size) / (8 if op == "prod" else 1)
    return np.resize(period.astype(dtype.numpy), count) if count else np.empty(0, dtype.numpy)


def get_reduction_function(op: str) -> Callable[[Array, Array], Array]:
    """Return the binary function of a reduction, on arrays of any element type."""
    function: Callable[[Array, Array], Array] = getattr(np, FUNCTIONS[op])
    return function


def compute_expected_result(
    operation: Operation, inputs: Sequence[Array | None], op: str, rank: int, root: int
) -> ExpectedResult | None:
    """Return the expected output of `rank`, or None if it has no output.

    Args:
        operation: the collective.
        inputs: every rank's input, 1-D; None for a rank without input; several blocks are concatenated.
        op: the reduction, if the operation reduces.
        rank: the rank that has the output.
        root: the root, if the operation has one.
    """
    n = len(inputs)
    given = [array for array in inputs if array is not None]
    if operation is Operation.BARRIER or (operation in (Operation.REDUCE, Operation.GATHER) and rank != root):
        return None
    if operation.reduces:
        mine = slice(None) if operation is not Operation.REDUCE_SCATTER else _block(given[0], rank, n)
        return _reduced([array[mine] for array in given], op)
    if operation is Operation.BROADCAST:
        return ExpectedResult(_at(inputs, root))
    if operation is Operation.SCATTER:
        return ExpectedResult(_at(inputs, root)[_block(_at(inputs, root), rank, n)])
    if operation is Operation.ALL_TO_ALL:
        return ExpectedResult(np.concatenate([array[_block(array, rank, n)] for array in given]))
    return ExpectedResult(np.concatenate(given))


def _at(inputs: Sequence[Array | None], root: int) -> Array:
    found = inputs[root]
    if found is None:
        raise ValueError(f"rank {root} is the root and has no input")
    return found


def _block(array: Array, rank: int, n: int) -> slice:
    count = len(array) // n
    return slice(rank * count, (rank + 1) * count)


def _reduced(inputs: Sequence[Array], op: str) -> ExpectedResult:
    """Return the reduction in a wider type, with the error bound 4 (n + 1) eps sum|x| of any order of summation."""
    dtype, n = inputs[0].dtype, len(inputs)
    combine = get_reduction_function(op)
    exact = dtype.kind in "biu" or op in ("min", "max")
    wide = dtype if exact else np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    total = inputs[0].astype(wide)
    for array in inputs[1:]:
        total = combine(total, array.astype(wide))
    if exact:
        return ExpectedResult(total)
    magnitude = np.abs(inputs[0].astype(wide))
    for array in inputs[1:]:
        magnitude = combine(magnitude, np.abs(array.astype(wide)))
    eps = _eps(dtype)
    scale = n if op == "avg" else 1
    # Products of complex numbers round four times a step; one more rounding for the division of an average.
    return ExpectedResult(total / scale, (4 * (n + 1)) * eps * magnitude / scale)


def _eps(dtype: np.dtype[Any]) -> float:
    if dtype.name == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps)
