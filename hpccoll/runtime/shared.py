"""Arrays in memory that the ranks of a host share: MPI shared windows."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.runtime.dtypes import dtype_named


class Windows:
    """The shared windows of a communicator; they live until `free`."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._node: MPI.Intracomm | None = None
        self._windows: list[MPI.Win] = []

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Return this rank's uninitialised part of a new window; collective.

        Raises:
            UsageError: a negative extent or an unknown dtype.
        """
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(extent < 0 for extent in extents):
            raise UsageError(f"shape {extents} has a negative extent")
        kind = dtype_named(dtype)
        node = self._node = self._node or cast("MPI.Intracomm", self._comm.Split_type(MPI.COMM_TYPE_SHARED))
        info = MPI.Info.Create()
        info.Set("alloc_shared_noncontig", "true")  # each rank's part on pages of its own, near its cores
        count = math.prod(extents)
        window = MPI.Win.Allocate_shared(count * kind.itemsize, kind.itemsize, info=info, comm=node)
        info.Free()
        self._windows.append(window)
        memory, _ = window.Shared_query(node.rank)
        flat = np.frombuffer(cast("Any", memory), np.uint8, count * kind.itemsize)
        return np.asarray(flat.view(kind.numpy).reshape(extents))

    def free(self) -> None:
        """Give all windows back; collective. Arrays in them must not be touched any more."""
        while self._windows:
            self._windows.pop().Free()
        if self._node is not None:
            self._node.Free()
            self._node = None
