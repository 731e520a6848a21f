"""The element types of buffers, by the names that NumPy and torch have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hpccoll.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: name, NumPy dtype, and kind (b bool, i signed or unsigned integer, f float, c complex)."""

    name: str
    numpy: np.dtype[Any]
    kind: str

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.numpy.itemsize)


def _table() -> dict[str, DType]:
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    kinds = {"bool": "b", **dict.fromkeys(integers, "i"), "float16": "f", "float32": "f", "float64": "f"}
    kinds |= {"complex64": "c", "complex128": "c"}
    table = {name: DType(name, np.dtype(name), kind) for name, kind in kinds.items()}
    return table | {"bfloat16": DType("bfloat16", np.dtype(ml_dtypes.bfloat16), "f")}


DTYPES = _table()
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def get_dtype(name: str) -> DType:
    """Return an element type by name, or raise UnknownNameError with the valid names."""
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, list(DTYPES))
    return DTYPES[name]


def dtype_from_numpy(numpy: np.dtype[Any]) -> DType:
    """Return the element type for a NumPy dtype, or raise UnknownNameError with the valid names."""
    dtype = _BY_NUMPY.get(numpy)
    if dtype is None:
        raise UnknownNameError("dtype", str(numpy), list(DTYPES))
    return dtype
