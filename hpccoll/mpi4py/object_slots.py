"""The slots of a communicator, one per rank, which the collectives of objects exchange first (see `objects.py`).

Slots have one of two sizes. On 2 ranks, an all_gather of small slots (256 bytes) takes 0.9 us, and an all_gather of
large slots (4,160 bytes) takes 3.6 us. A call uses small slots if all objects were small in the previous call of the
same method and root; all ranks know this. If a call with small slots has larger objects, these need a second exchange.
`alltoall`, and `gather` by the MPI library, always use large slots, because a rank does not see all objects of these
calls.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.mpi4py.acceleration import Acceleration
from hpccoll.mpi4py.configuration import SUM
from hpccoll.mpi4py.objects import HEADER_BYTES, EncodedObject, ObjectHeader, decode, encode
from hpccoll.mpi4py.signatures import BYTES
from hpccoll.native import SmallObjects
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

MOST_INLINE_BYTES: Final = 4096  # of an object in a slot
SLOTS_BYTES: Final = 2**18  # bytes of the slots of all ranks, if there are many ranks
LEAST_INLINE_BYTES: Final = 256
MARK: Final = HEADER_BYTES - 1  # the byte of a header that says whether the items for all ranks are small
SMALL_BYTES: Final = 192  # most bytes of an object in a small slot; with the header, four cache lines
SLOT_OPERATIONS: Final = {  # the collectives on slots that carry out the collectives of objects
    "allreduce": Operation.ALL_GATHER,
    "reduce": Operation.ALL_GATHER,
    "allgather": Operation.ALL_GATHER,
    "gather": Operation.ALL_GATHER,
    "bcast": Operation.BROADCAST,
    "scatter": Operation.SCATTER,
    "alltoall": Operation.ALL_TO_ALL,
}


class ObjectSlots:
    """Buffers of fixed size (slots) by which the ranks of one communicator exchange Python objects.

    There is a slot for this rank's object, and one per rank for objects that are received or scattered.

    Args:
        state: the `Acceleration` of the communicator.
        nbytes: the size of a slot, with the header of the object.
        are_small: whether these are the small slots.
        other: the slots of the other size, if they exist already.

    Attributes:
        own: this rank's slot.
        all: one slot per rank, for received or scattered objects.
        sent: one slot per rank, for the objects that an alltoall sends.
        inline_bytes: the size in bytes of the largest object that fits into a slot.
        calls: a dict from mpi4py's method and root to the operation, root and algorithm of the collective that
            exchanges the slots; the algorithm None stands for the MPI library's collective.
        small: writes and reads objects of at most `SMALL_BYTES`.
    """

    def __init__(self, state: Acceleration, nbytes: int, *, are_small: bool, other: ObjectSlots | None = None) -> None:
        self.state, self.rank, self.ranks, self.nbytes = state, state.rank, state.size, nbytes
        self.inline_bytes = self.nbytes - HEADER_BYTES
        self.are_small, self.other = are_small, other
        self.own: Any = np.zeros(self.nbytes, np.uint8)
        self.all: Any = np.zeros((self.ranks, self.nbytes), np.uint8)
        self.sent: Any = None  # of alltoall
        flat: Any = self.all.reshape(-1)
        self.own_view, self.all_view = self.own.data, flat.data
        self._none: list[EncodedObject | None] = [None] * self.ranks
        self.calls: dict[tuple[str, int], tuple[Operation, int, str | None]] = {}
        self._run_in_table: Any = self.communicator._table.run
        self.small = SmallObjects(self.nbytes, SMALL_BYTES, MPI.pickle)

    @classmethod
    def make(cls, state: Acceleration) -> ObjectSlots:
        """Return the large slots (buffers) of a communicator; their attribute `other` has the small slots."""
        large = cls(state, count_slot_bytes(state.size), are_small=False)
        large.other = cls(state, HEADER_BYTES + SMALL_BYTES, are_small=True, other=large)
        return large

    @property
    def communicator(self) -> Communicator:
        """The hpccoll communicator that exchanges the slots, and objects that do not fit into slots."""
        communicator = self.state.communicator
        if communicator is None:
            raise UsageError("this communicator was freed; use one that is open, or free it later")
        return communicator

    def prepare(self, use: str, root: int) -> None:
        """Select the algorithm by which `run` exchanges one buffer (slot) per rank for mpi4py's method named `use`."""
        operation = SLOT_OPERATIONS[use]
        at = index(root) if operation.has_root else 0
        self.calls[use, root] = operation, at, self.state.select_now(operation, SUM, BYTES, self.nbytes, at)

    def leave(self, use: str, root: int, *, are_small: bool) -> None:
        """Let the next call of the method of mpi4py named `use`, with this `root`, exchange small or large slots.

        `are_small` is whether all objects of this call were small; all ranks must pass the same value.
        """
        if are_small is not self.are_small and self.other is not None:
            self.state.slots[use, root] = self.other

    def run(self, use: str, x: Any, out: Any, root: int = 0) -> bool:
        """Exchange slots (buffers, one per rank) by hpccoll; return False if the caller must use MPI. Collective.

        Args:
            use: mpi4py's method, such as `gather`, for which `prepare` was called.
            x: the slots that this rank sends; None on ranks without input.
            out: the slots for the result; None if the result overwrites `x`.
        """
        operation, root, algorithm = self.calls[use, root]
        if algorithm is None:
            return False
        arrays = (x, out) if x is not None else (out, None)  # the table takes the output first if there is no input
        if self._run_in_table(operation, *arrays, SUM, root, algorithm, None) is NotImplemented:
            self.communicator._collective(operation, x, out, SUM, root, algorithm, False)
        return True

    def write(self, obj: Any) -> EncodedObject | None:
        """Write `obj` into this rank's buffer; return it encoded, or None if it has at most SMALL_BYTES bytes."""
        if self.small.write(self.own_view, 0, obj):
            return None
        encoded = encode(obj)
        encoded.write(self.own_view)
        return encoded

    def write_items(self, items: Any, slots: memoryview) -> list[EncodedObject | None]:
        """Write one object for each rank into the buffers `slots`; return the encoded objects, None for each small one.

        `items` is a sequence of one object for each rank; None sends None to every rank.

        Raises:
            ValueError: there is not one item for each rank.
        """
        items = [None] * self.ranks if items is None else items if type(items) is list else list(items)
        if len(items) != self.ranks:
            raise ValueError(f"expecting {self.ranks} items, got {len(items)}")
        if self.small.write_all(slots, items):
            return self._none
        encoded: list[EncodedObject | None] = []
        for at, item in zip(range(0, len(slots), self.nbytes), items, strict=True):
            encoded.append(None if self.small.write(slots, at, item) else encode(item))
            if (large := encoded[-1]) is not None:
                large.write(slots[at : at + self.nbytes])
            slots[at + MARK] = False
        return encoded

    def read_all(self) -> tuple[list[Any] | None, list[ObjectHeader]]:
        """Return the objects in the buffers (slots) of all ranks, and the headers that describe them.

        Instead of the objects, None is returned if an object does not fit into its slot. The list of headers is empty
        if all objects are small.
        """
        items = self.small.read_all(self.all_view)
        if items is not NotImplemented:
            return items, []
        headers = [ObjectHeader(self.all_view, offset) for offset in range(0, self.all.nbytes, self.nbytes)]
        return self._decode_all(headers), headers

    def fits(self, header: ObjectHeader) -> bool:
        """Whether the object that `header` describes fits into a slot, so that its bytes follow its header."""
        return bool(header.nbytes <= self.inline_bytes)

    def decode(self, header: ObjectHeader, rank: int) -> Any:
        """Return the object that `header` describes, from the slot of `rank`."""
        return decode(header, self.all_view, rank * self.nbytes + HEADER_BYTES)

    def _decode_all(self, headers: list[ObjectHeader]) -> list[Any] | None:
        """Return the objects in all ranks' buffers, which `headers` describe; None if an object is too large."""
        for header in headers:
            if header.nbytes > self.inline_bytes:
                return None
        return [
            decode(header, self.all_view, offset)
            for header, offset in zip(headers, range(HEADER_BYTES, self.all.nbytes, self.nbytes), strict=True)
        ]


def count_slot_bytes(ranks: int) -> int:
    """Return the size of a large slot (a buffer for one object and its header) on a communicator of `ranks` ranks."""
    return HEADER_BYTES + max(LEAST_INLINE_BYTES, min(MOST_INLINE_BYTES, SLOTS_BYTES // ranks // 64 * 64))
