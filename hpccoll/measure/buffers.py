"""Allocators of a benchmark's NumPy or CuPy buffers in host memory, shared host memory or CUDA memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.arrays import NUMPY, ArrayModule, CupyModule, DType, FlatArray, NumPyModule, get_array_module
from hpccoll.errors import UnavailableError

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

_ALIGNED = 4096


class PreallocatedModule:
    """Base class of allocators that give out parts of `memory`, an array of bytes, as NumPy or CuPy arrays."""

    def __init__(self, memory: FlatArray) -> None:
        super().__init__()
        self._memory, self._used = memory, 0

    def rewind(self) -> None:
        """Forget all allocations, so that the next call of `empty` reuses the memory from its beginning."""
        self._used = 0

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Return an array of `count` elements in the next free, page-aligned part of the memory; uninitialized."""
        nbytes = count * dtype.itemsize
        begin, self._used = self._used, self._used + -(-nbytes // _ALIGNED) * _ALIGNED
        if begin + nbytes > len(self._memory):
            raise RuntimeError(f"the benchmark's buffer has {len(self._memory)} bytes and needs {begin + nbytes}")
        return self._memory[begin : begin + nbytes].view(dtype.numpy)


class SharedMemoryModule(PreallocatedModule, NumPyModule):
    """Allocates NumPy arrays in one buffer of host memory that the ranks of a node share."""


class SharedCupyModule(PreallocatedModule, CupyModule):
    """Allocates CuPy arrays in one buffer of GPU memory that the ranks of a node share."""


def make_buffer_module(buffer: str, comm: Communicator, most_bytes: int) -> ArrayModule:
    """Return the allocator of a benchmark's buffers; allocates shared memory, if needed. Collective over `comm`.

    For `cuda`, a node's GPUs are assigned to its ranks round-robin, and each rank's GPU becomes its current device.

    Args:
        buffer: `host`, `symmetric` (memory shared by the ranks of a node) or `cuda` (GPU memory, shared by CUDA IPC if
            possible).
        comm: the communicator whose ranks share the memory.
        most_bytes: the largest total size, in bytes, of the arrays that exist at one time.

    Raises:
        UnavailableError: there is no CUDA device, or CuPy is not installed.
    """
    if buffer == "symmetric":
        return SharedMemoryModule(comm.empty(most_bytes + 4 * _ALIGNED, "uint8"))
    if buffer == "host":
        return NUMPY
    cuda = get_array_module(buffer, comm.local_rank)
    try:
        window = comm.cupy_empty(most_bytes + 4 * _ALIGNED, "uint8")
    except UnavailableError:  # raised on every rank if CUDA IPC is unavailable; messages still work
        return cuda
    return SharedCupyModule(window)
