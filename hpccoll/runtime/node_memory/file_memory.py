"""Memory that one rank makes for itself, and that the other ranks of its node can map later.

A symmetric buffer is made by all ranks together. A file memory is made by one rank without communication, as a Linux
memfd. The location of a file memory (see `SymmetricBuffers.locate`) contains the descriptor of the memfd, by which
another rank opens /proc/PID/fd/DESCRIPTOR. The system reuses descriptors, so the location also contains a number that
no other memfd of the process has.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import CommunicationError
from hpccoll.runtime.node_memory.segment import MappedSegment

IN_FILE: Final = 3 << 62  # these bits are set in every location in a file, and in no other location
_OFFSET_BITS, _DESCRIPTOR_BITS, _NUMBER_BITS = 36, 12, 14


@dataclass(slots=True, eq=False)
class FileMemory:
    """The memory of one memfd: its address and size in bytes, its descriptor and its number."""

    address: int
    nbytes: int
    descriptor: int
    number: int

    def free(self) -> None:
        """Close the memfd; called when the memory is released."""
        os.close(self.descriptor)

    def locate(self, address: int) -> int:
        """Return the integer by which other ranks find an address in this memory."""
        words = (self.number << _DESCRIPTOR_BITS | self.descriptor) << _OFFSET_BITS
        return IN_FILE | words | (address - self.address)


class FileMemories:
    """Makes memfds of this process, counts them, and keeps the mapped memfds of other processes."""

    def __init__(self) -> None:
        self.made = 0
        self._mapped: weakref.WeakValueDictionary[tuple[int, int], MappedSegment] = weakref.WeakValueDictionary()

    def make(self, nbytes: int) -> tuple[NDArray[np.uint8], FileMemory] | None:
        """Return an array of new memory and its `FileMemory`; None if memory is short or a location has too few bits.

        The caller keeps only the array; the memory is released with the last array on it.
        """
        if self.made + 1 >= 1 << _NUMBER_BITS or not 0 < nbytes <= 1 << _OFFSET_BITS:
            return None
        try:
            descriptor = os.memfd_create("hpccoll", os.MFD_CLOEXEC)
        except OSError:  # too many open files
            return None
        segment: MappedSegment | None = None
        if descriptor < 1 << _DESCRIPTOR_BITS:
            with suppress(OSError):  # too little memory
                os.posix_fallocate(descriptor, 0, nbytes)
                segment = MappedSegment(descriptor, nbytes)
        if segment is None:
            os.close(descriptor)
            return None
        own = np.frombuffer(segment, np.uint8)
        self.made += 1
        return own, FileMemory(own.__array_interface__["data"][0], nbytes, descriptor, self.made)

    def map(self, process_id: int, location: int) -> tuple[NDArray[np.uint8], int]:
        """Return another process's memory that contains a location, as an array, and the location's byte offset in it.

        Raises:
            CommunicationError: the memory was released, or this process has too many open files.
        """
        name, offset = location >> _OFFSET_BITS, location & ((1 << _OFFSET_BITS) - 1)
        segment = self._mapped.get((process_id, name))
        if segment is None:
            path = f"/proc/{process_id}/fd/{name & ((1 << _DESCRIPTOR_BITS) - 1)}"
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    segment = MappedSegment(descriptor, os.fstat(descriptor).st_size)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise CommunicationError(
                    f"the memory of process {process_id} cannot be mapped ({error}); was a tensor freed during a "
                    "collective, or are too many files open (ulimit -n)?"
                ) from error
            self._mapped[process_id, name] = segment
        return np.frombuffer(segment, np.uint8), offset


@cache
def file_memories() -> FileMemories:
    """Return the `FileMemories` of this process."""
    return FileMemories()


def is_in_file(location: Any) -> bool:
    """Whether a location, as `SymmetricBuffers.locate` returns it, is in a memfd of `FileMemories`."""
    return bool(location & IN_FILE == IN_FILE)
