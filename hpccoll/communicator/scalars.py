"""Reductions of numbers: the element type that represents the numbers of all ranks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.arrays import DTYPES, dtype_from_numpy
from hpccoll.errors import UsageError

SCALARS: Final = (bool, int, float, complex, np.generic)
_NAMES: Final = list(DTYPES)


def encode_dtype(x: Any) -> NDArray[np.int64]:
    """Return an array of one element: an integer that stands for the element type of `x`, a number of Python or NumPy.

    The integer is -1 if no element type represents `x`. `find_common_dtype` decodes it.
    """
    try:
        return np.array([_NAMES.index(dtype_from_numpy(np.asarray(x).dtype).name)])
    except UsageError:
        return np.array([-1])


def find_common_dtype(numbers: NDArray[np.int64]) -> np.dtype[Any]:
    """Return the NumPy dtype that represents the numbers of all ranks.

    Args:
        numbers: the results of `encode_dtype` on all ranks, in rank order.

    Raises:
        UsageError: no element type represents a rank's number, or no element type represents the numbers of all ranks.
    """
    if (numbers < 0).any():
        rank = int(np.argmax(numbers < 0))
        raise UsageError(f"rank {rank} passed a number that fits no dtype; use numbers of at most 64 bits")
    try:
        return np.result_type(*(DTYPES[_NAMES[number]].numpy for number in numbers))
    except TypeError as error:
        raise UsageError(f"the ranks' numbers have no common dtype ({error}); pass arrays of one dtype") from None
