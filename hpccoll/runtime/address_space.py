"""Finds the arrays and addresses for the memory ranges in a rank's program, for plans in device memory.

A rank's program contains offsets but no addresses, so one program serves all arrays of the same size. A program that C
code runs needs no `AddressSpace`, because it refers to each memory by a number (hpccoll/lowering/native_rows.py).
"""

from __future__ import annotations

from hpccoll.arrays import FlatArray
from hpccoll.lowering import OWN, MemoryKind, MemoryRange, Program
from hpccoll.runtime.collective_call import CollectiveCall


class AddressSpace:
    """Finds the array or address of each memory range in one rank's program. Offsets and counts are in elements.

    Args:
        call: the collective; SOURCE is its input and RESULT its output, and all memory has its dtype.
        program: this rank's instructions, and how much they need of the two scratch memories, WORK and LANDING.
        scratch: this rank's scratch, at least as large as WORK and LANDING together.
    """

    def __init__(self, call: CollectiveCall, program: Program, scratch: FlatArray) -> None:
        self.module, self.itemsize = call.module, call.dtype.itemsize
        self.reduce_function = call.reduction.function
        none, work = scratch[:0], program.work
        self._own: tuple[FlatArray, ...] = (  # in the order of MemoryKind
            call.source.flat if call.source else none,
            call.result.flat if call.result else none,
            scratch[:work],
            scratch[work : work + program.landing],
        )
        self._peers: dict[tuple[MemoryKind, int], int] = {}

    def add_peer(self, kind: MemoryKind, rank: int, address: int) -> None:
        """Record the address of another rank's input (`kind` SOURCE) or output (RESULT)."""
        self._peers[kind, rank] = address

    def view(self, place: MemoryRange) -> FlatArray:
        """Return a range of this rank's memory as an array."""
        return self._own[place.memory][place.start : place.stop]

    def address(self, place: MemoryRange) -> int:
        """Return the address of a memory range."""
        if place.owner == OWN:
            base = self.module.get_address(self._own[place.memory])
        else:
            base = self._peers[place.memory, place.owner]
        return base + place.start * self.itemsize
