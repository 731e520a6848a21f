"""Fast checks of plain arrays, which need none of the other checks of a collective's arguments.

A plain array is a NumPy array, or a torch tensor on the CPU, that is C-contiguous, writable and no instance of a
subclass.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mpi4py import MPI


def is_plain(x: Any) -> bool:
    """Whether `x` is a plain array: a C-contiguous, writable NumPy array or CPU torch tensor, not of a subclass.

    Does not import torch.
    """
    if type(x) is np.ndarray:
        return bool(x.flags.carray)
    torch = sys.modules.get("torch")
    if torch is None or type(x) is not torch.Tensor or x.layout is not torch.strided or not x.is_cpu:
        return False
    return x.is_contiguous() and not x.is_neg() and not x.is_conj()


def get_address(x: Any) -> int:
    """Return the address of the first element of a NumPy array or CPU torch tensor."""
    return int(MPI.Get_address(x) if type(x) is np.ndarray else x.data_ptr())
