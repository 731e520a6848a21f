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
_NAMES_ELSEWHERE = {"half": "float16", "float": "float32", "double": "float64"}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def get_dtype(given: Any) -> DType:
    """Return an element type for a name, a NumPy dtype or scalar type, or a torch dtype.

    Names are NumPy's, and nccl-tests' `half`, `float` and `double`.

    Raises:
        UnknownNameError: there is no such element type; lists the valid names.
    """
    name = _NAMES_ELSEWHERE.get(given, given) if isinstance(given, str) else _get_name(given)
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, list(DTYPES))
    return DTYPES[name]


def _get_name(given: Any) -> str:
    """Return the name of a NumPy dtype, a scalar type (Python's `float` is float64) or a torch dtype."""
    if str(given).startswith("torch."):
        return str(given).removeprefix("torch.")
    try:
        return str(np.dtype(given).name)
    except TypeError:
        return str(given)


def dtype_from_numpy(numpy: np.dtype[Any]) -> DType:
    """Return the element type for a NumPy dtype, or raise UnknownNameError with the valid names."""
    dtype = _BY_NUMPY.get(numpy)
    if dtype is None:
        raise UnknownNameError("dtype", str(numpy), list(DTYPES))
    return dtype
