"""The collectives of Python objects: mpi4py's methods with a lower-case first letter, over hpccoll.

Each call exchanges one slot per rank (see `objects.py`). What does not fit into the slots follows in a second exchange:
equal arrays as a collective on their memory, other objects as bytes. All ranks see the headers, so all ranks know
whether there is a second exchange. Reductions by a function of the user, and of large objects other than equal arrays,
are mpi4py's.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.communicator import Communicator
from hpccoll.mpi4py.acceleration import Acceleration
from hpccoll.mpi4py.array_libraries import to_library
from hpccoll.mpi4py.buffer_collectives import BufferCollectives, find_reduction
from hpccoll.mpi4py.configuration import get_configuration
from hpccoll.mpi4py.objects import ARRAY, HEADER_BYTES, EncodedObject, ObjectHeader, decode, encode, make_array
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import DTYPES

MOST_INLINE_BYTES: Final = 4096  # of an object in a slot
SLOTS_BYTES: Final = 2**18  # of the slots of all ranks, if there are many
LEAST_INLINE_BYTES: Final = 256
_PLAIN: Final = MPI.Comm
_ARITHMETIC: Final = {"sum": "iufc", "prod": "iufc", "band": "iu", "bor": "iu", "bxor": "iu"}
_SUPPORTED: Final = {dtype.numpy for dtype in DTYPES.values()}


class ObjectSlots:
    """The slots of one communicator: one for this rank's object, and one per rank for those received or scattered."""

    def __init__(self, ranks: int) -> None:
        self.inline_bytes = max(LEAST_INLINE_BYTES, min(MOST_INLINE_BYTES, SLOTS_BYTES // ranks // 64 * 64))
        self.nbytes = HEADER_BYTES + self.inline_bytes
        self.own: Any = np.zeros(self.nbytes, np.uint8)
        self.all: Any = np.zeros((ranks, self.nbytes), np.uint8)
        self.sent: Any = None  # of alltoall
        flat: Any = self.all.reshape(-1)
        self.own_view, self.all_view = self.own.data, flat.data

    def read_headers(self) -> list[ObjectHeader]:
        """Return the headers of all ranks' slots."""
        return [ObjectHeader(self.all_view, offset) for offset in range(0, self.all.nbytes, self.nbytes)]

    def fits(self, header: ObjectHeader) -> bool:
        """Whether the bytes of an object are in its slot."""
        return bool(header.nbytes <= self.inline_bytes)

    def decode(self, header: ObjectHeader, rank: int) -> Any:
        """Return the object in the slot of a rank."""
        return decode(header, self.all_view, rank * self.nbytes + HEADER_BYTES)


class ObjectsOverBuffers(BufferCollectives):
    """mpi4py's lower-case collectives (bcast, gather, ...), which send pickled objects by hpccoll's collectives."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on all ranks."""
        entered = self._enter_objects(root)
        if entered is None:
            return _PLAIN.bcast(self, obj, root)
        state, communicator, slots = entered
        encoded = encode(obj) if state.rank == root else None
        if encoded is not None:
            encoded.write(slots.own_view)
        communicator.broadcast(slots.own, root)
        header = ObjectHeader(slots.own_view)
        if slots.fits(header):
            return decode(header, slots.own_view, HEADER_BYTES)
        data = np.empty(header.nbytes, np.uint8) if encoded is None else encoded.flatten()
        communicator.broadcast(data, root, algorithm=_find_algorithm(Operation.BROADCAST, header.nbytes))
        return decode(header, data, copy=encoded is not None)

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        """Return the reduction of all ranks' objects on all ranks."""
        entered = self._enter_objects() if _is_predefined(op) else None
        if entered is not None:
            _, communicator, slots = entered
            headers = _gather_slots(communicator, slots, encoded := encode(sendobj))
            if all(slots.fits(header) for header in headers):
                return _combine([slots.decode(header, rank) for rank, header in enumerate(headers)], op)
            name = _find_array_reduction(headers, op)
            if name is not None:
                return _reduce_arrays(communicator, Operation.ALL_REDUCE, encoded, headers, name, 0)
        return _PLAIN.allreduce(self, sendobj, op)

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        """Return the reduction of all ranks' objects on the root, None on other ranks."""
        entered = self._enter_objects(root) if _is_predefined(op) else None
        if entered is not None:
            state, communicator, slots = entered
            headers = _gather_slots(communicator, slots, encoded := encode(sendobj))
            if all(slots.fits(header) for header in headers):
                if state.rank != root:
                    return None
                return _combine([slots.decode(header, rank) for rank, header in enumerate(headers)], op)
            name = _find_array_reduction(headers, op)
            if name is not None:
                return _reduce_arrays(communicator, Operation.REDUCE, encoded, headers, name, root)
        return _PLAIN.reduce(self, sendobj, op, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order."""
        entered = self._enter_objects()
        if entered is None:
            return _PLAIN.allgather(self, sendobj)
        _, communicator, slots = entered
        headers = _gather_slots(communicator, slots, encoded := encode(sendobj))
        if all(slots.fits(header) for header in headers):
            return [slots.decode(header, rank) for rank, header in enumerate(headers)]
        if _are_equal_arrays(headers):
            blocks = np.empty((len(headers), encoded.nbytes), np.uint8)
            algorithm = _find_algorithm(Operation.ALL_GATHER, blocks.nbytes)
            communicator.all_gather(encoded.flatten(), out=blocks, algorithm=algorithm)
            return [decode(header, block, copy=False) for header, block in zip(headers, blocks, strict=True)]
        counts = [0 if slots.fits(header) else header.nbytes for header in headers]
        own = np.empty(0, np.uint8) if encoded.nbytes <= slots.inline_bytes else encoded.flatten()
        data, starts = communicator.all_gather(own, counts=counts), np.cumsum([0, *counts])
        return [
            slots.decode(header, rank) if slots.fits(header) else decode(header, data, int(starts[rank]))
            for rank, header in enumerate(headers)
        ]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks on the root, in rank order; None on other ranks."""
        entered = self._enter_objects(root)
        if entered is None:
            return _PLAIN.gather(self, sendobj, root)
        state, communicator, slots = entered
        encoded = encode(sendobj)
        encoded.write(slots.own_view)
        communicator.gather(slots.own, root, out=slots.all if state.rank == root else None)
        if state.rank != root:
            if encoded.nbytes > slots.inline_bytes:
                communicator.send(encoded.flatten(), root)
            return None
        headers = slots.read_headers()
        return [
            slots.decode(header, rank) if slots.fits(header) else _receive(communicator, header, rank, encoded)
            for rank, header in enumerate(headers)
        ]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Return element r of the root's sequence on each rank r."""
        entered = self._enter_objects(root)
        if entered is None:
            return _PLAIN.scatter(self, sendobj, root)
        state, communicator, slots = entered
        encoded = _encode_items(sendobj, state.size) if state.rank == root else []
        for item, slot in zip(encoded, slots.all, strict=False):
            item.write(memoryview(slot))
        _PLAIN.Scatter(self, slots.all if encoded else None, slots.own, root)
        for rank, item in enumerate(encoded):
            if rank != root and item.nbytes > slots.inline_bytes:
                communicator.send(item.flatten(), rank)
        header = ObjectHeader(slots.own_view)
        if slots.fits(header):
            return decode(header, slots.own_view, HEADER_BYTES)
        return _receive(communicator, header, root, encoded[root] if encoded else None)

    def alltoall(self, sendobj: Any) -> list[Any]:
        """Send element r of the sequence to each rank r, and return the elements for this rank."""
        entered = self._enter_objects()
        if entered is None:
            return _PLAIN.alltoall(self, sendobj)
        state, communicator, slots = entered
        encoded = _encode_items(sendobj, state.size)
        if slots.sent is None:
            slots.sent = np.zeros_like(slots.all)
        for item, slot in zip(encoded, slots.sent, strict=True):
            item.write(memoryview(slot))
        communicator.all_to_all(slots.sent, out=slots.all)
        return _exchange_rest(communicator, slots, encoded)

    def _enter_objects(self, root: int = 0) -> tuple[Acceleration, Communicator, ObjectSlots] | None:
        """Count a call; return the state, communicator and slots that carry it out, or None if mpi4py does."""
        if not get_configuration().runs_objects or not hasattr(root, "__index__"):
            return None
        entered = self._enter() if 0 <= root < self.size else None
        if entered is None:
            return None
        state, communicator = entered
        if state.slots is None:
            state.slots = ObjectSlots(state.size)
        return state, communicator, state.slots


def _is_predefined(op: Any) -> bool:
    """Whether an operation is one of MPI's, and not a function of the user."""
    return isinstance(op, MPI.Op) and op.is_predefined


def _find_algorithm(operation: Operation, nbytes: int) -> str:
    """Return the algorithm that the user has chosen for an operation and size, or `auto`."""
    return get_configuration().find_algorithm(operation, nbytes)


def _gather_slots(communicator: Communicator, slots: ObjectSlots, encoded: EncodedObject) -> list[ObjectHeader]:
    """Exchange the slots of all ranks; return their headers."""
    encoded.write(slots.own_view)
    communicator.all_gather(slots.own, out=slots.all)
    return slots.read_headers()


def _combine(items: list[Any], op: Any) -> Any:
    """Return the reduction of the items of all ranks, combined in the same pairs as mpi4py's tree of messages."""
    distance = 1
    while distance < len(items):
        for rank in range(0, len(items) - distance, 2 * distance):
            items[rank] = op(items[rank], items[rank + distance])
        distance *= 2
    return items[0]


def _are_equal_arrays(headers: list[ObjectHeader]) -> bool:
    """Whether the objects of all ranks are arrays of one library, element type, shape and device."""
    first = headers[0]
    return first.kind == ARRAY and all(header.layout == first.layout for header in headers)


def _find_array_reduction(headers: list[ObjectHeader], op: Any) -> str | None:
    """Return the name of a reduction if hpccoll can reduce the objects of all ranks as arrays, else None."""
    name = find_reduction(op)
    if name is None or not _are_equal_arrays(headers):
        return None
    dtype = headers[0].dtype
    return name if dtype.kind in _ARITHMETIC.get(name, "") and dtype in _SUPPORTED else None


def _reduce_arrays(
    communicator: Communicator, operation: Operation, encoded: EncodedObject, headers: list[ObjectHeader], op: str,
    root: int,
) -> Any:  # fmt: skip
    """Reduce equal arrays of all ranks; return a new array, or None where there is no result.

    If the arrays of the ranks differ in the order of their elements, all are reduced in C order.
    """
    header = headers[communicator.rank]
    data = encoded.flatten()
    is_mixed = len({other.order for other in headers}) > 1
    if is_mixed and header.order:
        data = make_array(header, data, copy=False).ravel("C").view(np.uint8)
    x = data.view(header.dtype)
    out = np.empty_like(x) if operation is Operation.ALL_REDUCE or communicator.rank == root else None
    communicator._collective(operation, x, out, op, root, _find_algorithm(operation, x.nbytes), False)
    if out is None:
        return None
    header.order = 0 if is_mixed else header.order
    return to_library(make_array(header, out, copy=False), header.library, header.device)


def _encode_items(sendobj: Any, ranks: int) -> list[EncodedObject]:
    """Return the elements of a sequence for the ranks, encoded; None stands for None to each rank.

    Raises:
        ValueError: there is not one element for each rank.
    """
    items = [None] * ranks if sendobj is None else list(sendobj)
    if len(items) != ranks:
        raise ValueError(f"expecting {ranks} items, got {len(items)}")
    return [encode(item) for item in items]


def _receive(communicator: Communicator, header: ObjectHeader, source: int, own: EncodedObject | None) -> Any:
    """Return an object whose bytes follow from `source`; if that is this rank, a copy of its `own`."""
    if own is not None and source == communicator.rank:
        return decode(header, own.flatten())
    data = np.empty(header.nbytes, np.uint8)
    communicator.recv(data, source)
    return decode(header, data, copy=False)


def _exchange_rest(communicator: Communicator, slots: ObjectSlots, encoded: list[EncodedObject]) -> list[Any]:
    """Return the objects of an alltoall after its slots were exchanged; exchange those that did not fit."""
    headers, rank = slots.read_headers(), communicator.rank
    sources = [source for source, header in enumerate(headers) if source != rank and not slots.fits(header)]
    received = {source: np.empty(headers[source].nbytes, np.uint8) for source in sources}
    works: list[Any] = [communicator.irecv(data, source) for source, data in received.items()]
    for dest, item in enumerate(encoded):
        if dest != rank and item.nbytes > slots.inline_bytes:
            works.append(communicator.isend(item.flatten(), dest))
    for work in works:
        work.wait()
    objects = []
    for source, header in enumerate(headers):
        if source in received:
            objects.append(decode(header, received[source], copy=False))
        elif slots.fits(header):
            objects.append(slots.decode(header, source))
        else:
            objects.append(decode(header, encoded[rank].flatten()))
    return objects
