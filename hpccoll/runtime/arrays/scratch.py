"""Scratch memory of a communicator: one growing array per array module, device and element type.

Blocking operations run one at a time, so they share one array. If an operation needs more elements than the array has,
a new array of at least double the size replaces the old one. Executables (collectives bound to buffers) keep the old
array alive, so that their persistent requests stay valid. The old scratch arrays and the new one together take at most
twice the memory of the new one.
"""

from __future__ import annotations

from hpccoll.runtime.arrays.dtypes import DType
from hpccoll.runtime.arrays.interface import ArrayModule, FlatArray


class ScratchPool:
    """Scratch memory for operations; its contents are needed only during one operation."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, int, str], FlatArray] = {}

    def take(self, module: ArrayModule, dtype: DType, count: int) -> FlatArray:
        """Return `count` uninitialised elements; later calls return the same memory again."""
        key = module.name, module.device, dtype.name
        array = self._arrays.get(key)
        if array is None or len(array) < count:
            array = self._arrays[key] = module.empty(max(count, 2 * (0 if array is None else len(array))), dtype)
        return array[:count]
