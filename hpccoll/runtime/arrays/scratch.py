"""ScratchPool memory of a communicator: one growing piece per array module and element type.

Blocking operations run one at a time, so all of them share one piece. It grows by doubling; what was bound to a
smaller piece keeps that one alive until it is dropped, so nothing is ever moved under a persistent request, and all
pieces together are at most twice the largest.
"""

from __future__ import annotations

from hpccoll.runtime.arrays.dtypes import DType
from hpccoll.runtime.arrays.interface import ArrayModule, FlatArray


class ScratchPool:
    """Memory that is used within an operation and worthless after it."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, str], FlatArray] = {}

    def take(self, module: ArrayModule, dtype: DType, count: int) -> FlatArray:
        """Return `count` elements, shared with whoever takes next; uninitialised."""
        key = (module.name, dtype.name)
        piece = self._pieces.get(key)
        if piece is None or len(piece) < count:
            piece = self._pieces[key] = module.empty(max(count, 2 * (0 if piece is None else len(piece))), dtype)
        return piece[:count]
