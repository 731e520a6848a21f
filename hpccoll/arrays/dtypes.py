"""The element types of buffers, by the names that NumPy and torch have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hpccoll.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: name, NumPy dtype, kind (b bool, i signed or unsigned integer, f float, c complex), and size.

    `itemsize` is the number of bytes of an element.
    """

    name: str
    numpy: np.dtype[Any]
    kind: str
    itemsize: int


def _table() -> dict[str, DType]:
    """Return a dict from the name of each supported element type to its `DType`."""
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    kinds = {"bool": "b", **dict.fromkeys(integers, "i"), "float16": "f", "float32": "f", "float64": "f"}
    kinds |= {"complex64": "c", "complex128": "c"}
    table = {name: DType(name, np.dtype(name), kind, np.dtype(name).itemsize) for name, kind in kinds.items()}
    return table | {"bfloat16": DType("bfloat16", np.dtype(ml_dtypes.bfloat16), "f", 2)}


DTYPES = _table()
_NAMES_ELSEWHERE = {"half": "float16", "float": "float32", "double": "float64"}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def get_dtype(given: Any) -> DType:
    """Return an element type for a name, a NumPy dtype or scalar type, or a torch dtype.

    Valid names are `half`, `float` (float32) and `double`, as in nccl-tests, and NumPy's names, such as `f4` and
    `single`.

    Raises:
        UnknownNameError: there is no such element type; the message lists the valid names.
    """
    name = _NAMES_ELSEWHERE.get(given, given) if isinstance(given, str) else _get_name(given)
    name = name if name in DTYPES else _get_name(name)
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, list(DTYPES))
    return DTYPES[name]


def _get_name(given: Any) -> str:
    """Return NumPy's name, such as `float64`, of a NumPy dtype or its name, a scalar type, or a torch dtype.

    Python's `float` is float64. A type of the other byte order and an unknown type are returned as `str(given)`.
    """
    if str(given).startswith("torch."):
        return str(given).removeprefix("torch.")
    try:
        dtype = np.dtype(given)
    except (TypeError, ValueError, SyntaxError):
        return str(given)
    return dtype.name if dtype.isnative and dtype.names is None else str(given)


def dtype_from_numpy(numpy: np.dtype[Any]) -> DType:
    """Return the element type for a NumPy dtype, or raise UnknownNameError with the valid names."""
    dtype = _BY_NUMPY.get(numpy)
    if dtype is None:
        raise UnknownNameError("dtype", str(numpy), list(DTYPES))
    return dtype
