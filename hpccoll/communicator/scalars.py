"""Reductions of numbers: the element type that represents the numbers of all ranks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.runtime.arrays import DTYPES, dtype_from_numpy

SCALARS: Final = (bool, int, float, complex, np.generic)
_NAMES: Final = list(DTYPES)


def encode_dtype(x: Any) -> NDArray[np.int64]:
    """Return the number of the element type of a number of Python or NumPy; -1 if no element type represents it."""
    try:
        return np.array([_NAMES.index(dtype_from_numpy(np.asarray(x).dtype).name)])
    except UsageError:
        return np.array([-1])


def find_common_dtype(numbers: NDArray[np.int64]) -> np.dtype[Any]:
    """Return the NumPy dtype that represents the element types of all ranks, given by `encode_dtype`.

    Raises:
        UsageError: no element type represents a rank's number, or there is no common one.
    """
    if (numbers < 0).any():
        rank = int(np.argmax(numbers < 0))
        raise UsageError(f"rank {rank} passed a number that fits no dtype; use numbers of at most 64 bits")
    try:
        return np.result_type(*(DTYPES[_NAMES[number]].numpy for number in numbers))
    except TypeError as error:
        raise UsageError(f"the ranks' numbers have no common dtype ({error}); pass arrays of one dtype") from None
