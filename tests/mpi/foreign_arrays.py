"""An array library without NumPy's interfaces, whose arrays are immutable and known by DLPack only."""

from __future__ import annotations

from typing import Any

import numpy as np


class ImmutableArray:
    """An immutable array, as JAX has them, that shares its memory by DLPack."""

    def __init__(self, values: Any, dtype: Any = None) -> None:
        self._values = np.array(values, dtype)
        self._values.flags.writeable = False

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()

    def tolist(self) -> Any:
        return self._values.tolist()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape


class ArrayApiArray(ImmutableArray):
    """An immutable array whose library is found as the array API standard prescribes."""

    def __array_namespace__(self) -> Any:
        return Namespace


class Namespace:
    """The functions of the library."""

    @staticmethod
    def from_dlpack(array: Any) -> ArrayApiArray:
        return ArrayApiArray(np.from_dlpack(array))
