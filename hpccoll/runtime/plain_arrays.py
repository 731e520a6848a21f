"""Fast checks and views of plain arrays, which need none of the other checks of a collective's arguments.

A plain array is a NumPy array, or a torch tensor on the CPU, that is C-contiguous, writable and no instance of a
subclass.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mpi4py import MPI


def is_plain(x: Any) -> bool:
    """Whether an object is a plain array; answered without importing torch."""
    if type(x) is np.ndarray:
        return bool(x.flags.carray)
    torch = sys.modules.get("torch")
    if torch is None or type(x) is not torch.Tensor or x.layout is not torch.strided or not x.is_cpu:
        return False
    return x.is_contiguous() and not x.is_neg() and not x.is_conj()


def get_address(x: Any) -> int:
    """Return the address of a plain array's first element."""
    return int(MPI.Get_address(x) if type(x) is np.ndarray else x.data_ptr())


def as_mpi_buffer(x: Any) -> Any:
    """Return a plain array's memory as an object that mpi4py accepts."""
    return x if type(x) is np.ndarray else MPI.buffer.fromaddress(x.data_ptr(), x.nbytes)
