"""Scratch memory of a communicator: one growing array per array module, device and element type.

Blocking operations run one at a time, so they share one array. If an operation needs more elements than the array has,
a new array of at least double the size replaces the old one. Executables (collectives bound to buffers) keep the old
array alive, so that their persistent requests stay valid. The old scratch arrays and the new one together take at most
twice the memory of the new one.
"""

from __future__ import annotations

from typing import TypeAlias

from hpccoll.arrays.dtypes import DType
from hpccoll.arrays.interface import ArrayModule, FlatArray

Scratch: TypeAlias = dict[tuple[str, int, str], FlatArray]  # by array module, device and element type


def take_scratch(scratch: Scratch, module: ArrayModule, dtype: DType, count: int) -> FlatArray:
    """Return an uninitialised array of `count` elements; a later call may return the same memory again."""
    key = module.name, module.device, dtype.name
    array = scratch.get(key)
    if array is None or len(array) < count:
        array = scratch[key] = module.empty(max(count, 2 * (0 if array is None else len(array))), dtype)
    return array[:count]
