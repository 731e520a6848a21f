"""Symmetric buffers: arrays of every rank, alike in shape, that all ranks of the node can address.

An address tells which buffer an array lies in, also for views of it and for torch tensors that share its memory.
Which addresses are shared is a fact of the process, so all communicators ask the same `Ledger`.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.errors import MismatchError, UsageError
from hpccoll.runtime.arrays import Buffer, DType, dtype_from_numpy, get_dtype
from hpccoll.runtime.shared_memory.segment import mapped

Bytes = NDArray[np.uint8]
_IDS = 2**20  # numbers of buffers before they begin again
_OFFSETS = 2**42  # bytes
_TOKEN = 2**63  # set in a token, and in no address


class Freed(Protocol):
    """What is bound to symmetric buffers."""

    def free(self) -> None:
        """Let go of them."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Block:
    """One symmetric buffer: where it begins, its size in bytes, and every rank's piece, by rank.

    The own piece is not among them: it lives as long as the user's array, and the others' as long as the block.
    """

    owner: object
    number: int
    address: int
    nbytes: int
    pieces: dict[int, Any]  # bytes of host memory, or `device.Opened`
    freed: bool = False
    users: weakref.WeakSet[Freed] = field(default_factory=weakref.WeakSet)

    def free(self) -> None:
        """Let go of the others' pieces and of what was bound to them."""
        self.freed = True
        self.pieces = {}
        for user in list(self.users):
            user.free()


class Ledger:
    """All symmetric buffers of this process, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        """Record a buffer."""
        insort(self._starts, block.address)
        self._blocks[block.address] = block

    def remove(self, address: int) -> None:
        """Forget a buffer whose memory is gone."""
        block = self._blocks.pop(address)
        self._starts.remove(address)
        block.free()

    def find(self, address: int) -> Block | None:
        """Return the buffer that an address lies in."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        block = self._blocks[self._starts[at]]
        return block if address < block.address + block.nbytes else None


@cache
def ledger() -> Ledger:
    """Return the ledger of this process."""
    return Ledger()


class Symmetric:
    """The symmetric buffers of one communicator.

    Args:
        comm: all ranks.
        here: the ranks of this host.
    """

    def __init__(self, comm: MPI.Intracomm, here: tuple[int, ...]) -> None:
        self._comm, self._here = comm, here
        self._made = 0
        self._blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()

    def empty(self, shape: int | tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return this rank's array of a new symmetric buffer, uninitialised; collective.

        Raises:
            UsageError: a negative extent or an unknown dtype.
            MismatchError: ranks asked for different shapes or dtypes.
            UnavailableError: there is too little memory, or it cannot be shared.
        """
        extents, kind = self.agreed(shape, dtype)
        nbytes = math.prod(extents) * kind.itemsize
        pieces = mapped(self._comm, self._here, nbytes, reserve=True)
        own = pieces.pop(self._comm.rank)
        flat = np.frombuffer(own, np.uint8, nbytes)
        address = flat.__array_interface__["data"][0]
        others = {rank: np.frombuffer(piece, np.uint8, nbytes) for rank, piece in pieces.items()}
        self.record(own, address, nbytes, others)
        return np.asarray(flat.view(kind.numpy).reshape(extents))

    def agreed(self, shape: int | tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], DType]:
        """Return the extents and the element type, once all ranks have asked for the same; see `empty`."""
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        wrong: UsageError | None = None
        kind = get_dtype("uint8")
        try:
            kind = get_dtype(dtype)
        except UsageError as error:
            wrong = error
        if any(extent < 0 for extent in extents):
            wrong = UsageError(f"shape {extents} has a negative extent")
        asked = self._comm.allgather((extents, dtype, str(wrong or "")))  # the others must not be left waiting
        if wrong is not None:
            raise wrong
        for rank, each in enumerate(asked):
            if each != asked[self._comm.rank]:
                theirs = each[2] or f"{each[0]} of {each[1]}"
                raise MismatchError(
                    f"rank {self._comm.rank} asked for a symmetric buffer of shape {extents} of {dtype}, rank {rank} "
                    f"for {theirs}; ask for the same on every rank"
                )
        return extents, kind

    def record(self, own: object, address: int, nbytes: int, others: dict[int, Any]) -> None:
        """Make this rank's memory a symmetric buffer, until `own`, which holds it, is gone.

        Args:
            own: what the user's arrays keep alive.
            address: where it begins.
            nbytes: bytes.
            others: the pieces of the other ranks.
        """
        self._made += 1
        block = Block(self, self._made % _IDS, address, nbytes, others)
        self._blocks[block.number] = block
        known = ledger()
        known.add(block)
        # The user's array keeps `own`; when the last view of it is gone, so is the buffer on this rank.
        weakref.finalize(own, known.remove, address).atexit = False

    def find(self, address: int, nbytes: int) -> Block | None:
        """Return the buffer of this communicator that holds `nbytes` bytes at an address; None for other memory.

        Raises:
            UsageError: the buffer was freed, or belongs to another communicator.
        """
        block = ledger().find(address)
        if block is None or not nbytes:
            return None
        if block.freed:
            raise UsageError("this symmetric buffer was freed; make another with `empty`, or free it later")
        if block.owner is not self:
            raise UsageError(
                "this symmetric buffer belongs to another communicator, whose ranks alone can address it; make one "
                "with this communicator's `empty`, or pass a copy"
            )
        return block if address + nbytes <= block.address + block.nbytes else None

    def numbered(self, number: int) -> Block:
        """Return the buffer of that number, which another rank came with.

        Raises:
            UsageError: it is gone on this rank.
        """
        block = self._blocks.get(number)
        if block is None or block.freed:
            raise UsageError(
                f"rank {self._comm.rank}: another rank uses a symmetric buffer that is gone here; keep its array, and "
                "do not free it, as long as any rank uses the buffer"
            )
        return block

    def uses(self, user: Freed, *buffers: Buffer | None) -> None:
        """Record that `user` is freed with the symmetric buffers among these."""
        for buffer in buffers:
            block = self.find(buffer.address, buffer.nbytes) if buffer else None
            if block is not None:
                block.users.add(user)

    def free(self, array: Any) -> None:
        """Give a buffer back; its memory goes when no array lies in it any more. Each rank frees for itself.

        Raises:
            UsageError: `array` is no symmetric buffer of this communicator, or was freed before.
        """
        block = self.find(_address(array), 1)
        if block is None:
            raise UsageError("free takes an array that this communicator's `empty` returned")
        block.free()

    def close(self) -> None:
        """Free all buffers."""
        for block in list(self._blocks.values()):
            block.free()


def _address(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def token(block: Block, address: int) -> int:
    """Return where a buffer lies, for other ranks to read: the block's number and the offset in it."""
    return _TOKEN | block.number * _OFFSETS + address - block.address


def is_token(word: int) -> bool:
    """Whether a rank's word is a token, not an address."""
    return word >= _TOKEN


def parsed(word: int) -> tuple[int, int]:
    """Return the block's number and the offset that a token names."""
    return divmod(word & ~_TOKEN, _OFFSETS)


def tensor_on(array: Any) -> Any:
    """Return a torch tensor on the memory of a NumPy or CuPy array, of the same shape and element type."""
    if not isinstance(array, np.ndarray):
        from hpccoll.runtime.arrays import cupy_as_torch_tensor

        return cupy_as_torch_tensor(array)
    import torch

    flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, dtype_from_numpy(array.dtype).name)).reshape(array.shape)
