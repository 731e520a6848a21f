"""Symmetric buffers: one array per rank, all of one shape, that all ranks of a node can address.

The symmetric buffer of an array is looked up by the array's address, so views and torch tensors that share the memory
are found too. All communicators of a process share one registry of addresses.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from mmap import PAGESIZE
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.arrays import Buffer, DType, get_dtype
from hpccoll.errors import MismatchError, UsageError
from hpccoll.native import SharedBuffers
from hpccoll.runtime.agreement import gather_or_raise, wait_for_ranks
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.node_memory.file_memory import FileMemory, file_memories
from hpccoll.runtime.node_memory.segment import map_segment
from hpccoll.runtime.progress import Progress

Bytes = NDArray[np.uint8]
_BUFFER_NUMBERS = 2**20  # after so many buffers, numbers start again
_LARGEST_OFFSET = 2**42  # bytes
_TOKEN = 2**63  # a bit that is set in every token and in no address


@dataclass(slots=True, eq=False, weakref_slot=True)
class SymmetricBuffer:
    """One symmetric buffer (an array per rank): this rank's address and size in bytes, and the other ranks' memory.

    `peers` holds and keeps alive the other ranks' memory by rank: arrays of bytes in host memory, or `ExternalMemory`
    of a device. `peers` and the user's arrays keep the mapped segment of all ranks alive.
    """

    owner: object
    number: int
    address: int
    nbytes: int
    peers: dict[int, Any]
    freed: bool = False
    executables: weakref.WeakSet[Executable] = field(default_factory=weakref.WeakSet)

    @property
    def token(self) -> int:
        """The location of the buffer's first byte, an integer; the location of another byte is larger by its offset."""
        return _TOKEN | self.number * _LARGEST_OFFSET

    def free(self) -> None:
        """Release the other ranks' memory, and free the executables bound to the buffer."""
        self.freed = True
        self.peers = {}
        for executable in list(self.executables):
            executable.free()


@cache
def shared_buffers() -> SharedBuffers:
    """Return the registry of all symmetric buffers and memfds of this process, by address."""
    return SharedBuffers()


def _register(
    buffer: SymmetricBuffer | FileMemory, own: object, location: int, owner: object, bases: list[int]
) -> None:
    """Add a buffer to `shared_buffers` until `own`, which holds its memory, is garbage-collected.

    Args:
        location: the location of the buffer's first byte; see `SymmetricBuffers.locate`.
        owner: the `SymmetricBuffers` of the communicator whose ranks know the location; None for a memfd.
        bases: the addresses of the other ranks' memory; empty for a memfd and for device memory.
    """
    shared_buffers().add(buffer.address, buffer.nbytes, location, owner, bases, buffer)
    weakref.finalize(own, _remove, buffer.address).atexit = False


def _remove(address: int) -> None:
    """Remove and free the buffer at `address`; called when this rank's memory at `address` is released."""
    shared_buffers().remove(address).free()


class SymmetricBuffers:
    """The symmetric buffers of one communicator, on the ranks of this node.

    Args:
        is_in_use: returns, for an address and a number of bytes, whether an asynchronous run accesses any of these
            bytes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        node_ranks: tuple[int, ...],
        progress: Progress,
        is_in_use: Callable[[int, int], bool],
    ) -> None:
        self._comm, self._node_ranks, self._progress, self._is_in_use = comm, node_ranks, progress, is_in_use
        self._made = 0
        self._buffers: weakref.WeakValueDictionary[int, SymmetricBuffer] = weakref.WeakValueDictionary()

    def empty(self, shape: Any, dtype: Any) -> NDArray[Any]:
        """Return this rank's array of a new symmetric buffer, uninitialised; collective.

        Raises:
            UsageError: any rank passed a negative extent or an unknown dtype.
            MismatchError: the ranks passed different shapes or dtypes.
            UnavailableError: any rank has too little memory, or the ranks cannot share memory.
        """
        extents, element = self.agree_on(shape, dtype)
        nbytes = math.prod(extents) * element.itemsize
        stride = -(-max(nbytes, 1) // PAGESIZE) * PAGESIZE
        segment = map_segment(self._comm, self._node_ranks, stride * len(self._node_ranks), reserve=True)
        arrays = {
            rank: np.frombuffer(segment, np.uint8, nbytes, stride * row) for row, rank in enumerate(self._node_ranks)
        }
        own = arrays.pop(self._comm.rank)
        self.register(own, own.__array_interface__["data"][0], nbytes, arrays)
        return np.asarray(own.view(element.numpy).reshape(extents))

    def agree_on(self, shape: Any, dtype: Any) -> tuple[tuple[int, ...], DType]:
        """Return the shape and element type if all ranks passed the same; otherwise raise an error. Collective."""

        def check() -> tuple[tuple[int, ...], str]:
            """Return the shape as a tuple and the dtype's name; raise UsageError if one is invalid."""
            return _parse_shape(shape), get_dtype(dtype).name

        wait_for_ranks(self._comm, self._progress)
        requests = gather_or_raise(self._comm, check, UsageError)
        own = requests[self._comm.rank]
        for rank, request in enumerate(requests):
            if request != own:
                raise MismatchError(
                    f"rank {self._comm.rank} asked for a symmetric buffer of shape {own[0]} of {own[1]}, rank {rank} "
                    f"for {request[0]} of {request[1]}; ask for the same on every rank"
                )
        return own[0], get_dtype(own[1])

    def register(self, own: object, address: int, nbytes: int, peers: dict[int, Any]) -> None:
        """Add this rank's memory to the symmetric buffers until `own` is garbage-collected.

        Args:
            own: the object that holds this rank's memory, kept alive by the user's arrays alone.
            address: the address of this rank's memory.
            nbytes: bytes.
            peers: the other ranks' memory, by rank.
        """
        self._made += 1
        buffer = SymmetricBuffer(self, self._made % _BUFFER_NUMBERS, address, nbytes, peers)
        self._buffers[buffer.number] = buffer
        arrays = [peers[rank] for rank in self._node_ranks if rank in peers]
        bases = [array.ctypes.data for array in arrays if isinstance(array, np.ndarray)]
        _register(buffer, own, buffer.token, self, bases)

    def find(self, address: int, nbytes: int) -> SymmetricBuffer | None:
        """Return this communicator's symmetric buffer with `nbytes` bytes at `address`; None for other memory.

        Raises:
            UsageError: the symmetric buffer at `address` was freed, or belongs to another communicator.
        """
        buffer = shared_buffers().find(address)
        if buffer is None or isinstance(buffer, FileMemory) or not nbytes:
            return None
        if buffer.freed:
            raise UsageError("this symmetric buffer was freed; make another with `empty`, or free it later")
        if buffer.owner is not self:
            raise UsageError(
                "this symmetric buffer belongs to another communicator, and only that one's ranks can address it; make "
                "one with this communicator's `empty`, or pass a copy"
            )
        return buffer if address + nbytes <= buffer.address + buffer.nbytes else None

    def locate(self, buffer: Buffer | None) -> int:
        """Return an integer by which other ranks find a buffer: a token, a place in a memfd, or an address; 0 for None.

        A token is an integer made of the symmetric buffer's number and the byte offset in the symmetric buffer.
        """
        if buffer is None:
            return 0
        memory = find_file_memory(buffer)
        if memory is not None:
            return memory.locate(buffer.address)
        found = self.find(buffer.address, buffer.nbytes)
        if found is None:
            return buffer.address
        return found.token | (buffer.address - found.address)

    def resolve(self, rank: int, token: int) -> tuple[Any, int]:
        """Return the memory of `rank` in the symmetric buffer that `token` identifies, and the token's byte offset.

        Raises:
            UsageError: the symmetric buffer was freed or deleted on this rank.
        """
        buffer = self._buffers.get((token & ~_TOKEN) // _LARGEST_OFFSET)
        if buffer is None or buffer.freed:
            raise UsageError(
                f"rank {self._comm.rank}: another rank uses a symmetric buffer that was freed here; keep its "
                "array, and do not free it, while any rank uses the buffer"
            )
        return buffer.peers[rank], token % _LARGEST_OFFSET

    def free_with(self, executable: Executable, *buffers: Buffer | None) -> None:
        """Ensure that `executable` is freed when any symmetric buffer in `buffers` is freed."""
        for buffer in buffers:
            if buffer is None:
                continue
            found = self.find(buffer.address, buffer.nbytes)
            if found is not None:
                found.executables.add(executable)

    def free(self, array: Any) -> None:
        """Free a symmetric buffer on this rank; its memory is released when no array of any rank uses it any more.

        Blocks until asynchronous shared-memory plans on the buffer are done. Asynchronous operations that are not
        shared-memory plans go on: they access this rank's memory only, and keep this memory until they are complete.

        Raises:
            UsageError: `array` is not a symmetric buffer of this communicator, or was freed before.
        """
        buffer = self.find(_address(array), 1)
        if buffer is None:
            raise UsageError("free takes an array that this communicator's `empty` returned")
        self._progress.wait_until(lambda: not self._is_in_use(buffer.address, buffer.nbytes))
        shared_buffers().free(buffer.address)
        buffer.free()

    def close(self) -> None:
        """Free all symmetric buffers of this communicator on this rank."""
        for buffer in list(self._buffers.values()):
            shared_buffers().free(buffer.address)
            buffer.free()


def empty_in_file(nbytes: int) -> NDArray[np.uint8] | None:
    """Return an array of bytes in a memfd that other ranks of the node can map later; None if it cannot be made."""
    made = file_memories().make(nbytes)
    if made is None:
        return None
    own, memory = made
    _register(memory, own, memory.locate(memory.address), None, [])
    return own


def find_file_memory(buffer: Buffer) -> FileMemory | None:
    """Return the memfd that contains a buffer; None if the buffer is in no memfd."""
    shared = shared_buffers()
    memory = shared.find(buffer.address) if len(shared) else None
    if not isinstance(memory, FileMemory) or not buffer.nbytes:
        return None
    return memory if buffer.address + buffer.nbytes <= memory.address + memory.nbytes else None


def is_token(location: int) -> bool:
    """Whether an integer from `locate` encodes a place in a symmetric buffer or a memfd, and is not an address."""
    return location >= _TOKEN


def _address(array: Any) -> int:
    """Return the address of an array's first element."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def _parse_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple; raise UsageError unless it is an integer or a sequence of integers, none negative."""
    try:
        extents = tuple(index(extent) for extent in (shape if np.iterable(shape) else (shape,)))
    except TypeError:
        raise UsageError(f"shape {shape!r} is neither an integer nor a sequence of integers") from None
    if any(extent < 0 for extent in extents):
        raise UsageError(f"shape {extents} has a negative extent")
    return extents
