"""The collectives of Python objects: mpi4py's methods with a lower-case first letter, over hpccoll.

Each call exchanges one slot, a buffer of fixed size, per rank (`object_slots.py`). Objects that do not fit into their
slots follow in a second exchange: arrays of equal type and shape as a collective on their memory, other objects as
bytes. All ranks that take part in the second exchange know of it from the headers in the slots. mpi4py itself carries
out reductions by a function of the user, and reductions of large objects other than arrays of equal type and shape.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.mpi4py.acceleration import find_acceleration
from hpccoll.mpi4py.array_libraries import to_library
from hpccoll.mpi4py.buffer_collectives import BufferCollectives, find_reduction
from hpccoll.mpi4py.configuration import AUTO, SUM, get_configuration
from hpccoll.mpi4py.object_slots import MARK, SLOT_OPERATIONS, ObjectSlots, count_slot_bytes
from hpccoll.mpi4py.objects import ARRAY, HEADER_BYTES, EncodedObject, ObjectHeader, decode, make_array
from hpccoll.mpi4py.signatures import BYTES, list_element_types
from hpccoll.mpi4py.watched_calls import find_method
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

OBJECT_WORTH: Final = 10  # a call with objects counts as 10 with buffers: its size is not known before the call
MOST_MPI_BYTES: Final = 2**31 - 1  # most bytes of a message of an MPI library without MPI 4's large counts
_ARITHMETIC: Final = {"sum": "iufc", "prod": "iufc", "band": "iu", "bor": "iu", "bxor": "iu"}
_PLAIN_OBJECTS: Final = {
    name: find_method(name) for name in ("bcast", "allreduce", "reduce", "allgather", "gather", "scatter", "alltoall")
}
_PLAIN_METHODS: Final = {
    Operation.BROADCAST: find_method("Bcast"),
    Operation.ALL_GATHER: find_method("Allgather"),
    Operation.REDUCE: find_method("Reduce"),
    Operation.ALL_REDUCE: find_method("Allreduce"),
}
_PLAIN_BCAST: Final = find_method("Bcast")
_PLAIN_GATHER: Final = find_method("Gather")
_PLAIN_SCATTER: Final = find_method("Scatter")
_PLAIN_ALLTOALL: Final = find_method("Alltoall")
_PLAIN_ALLGATHER: Final = find_method("Allgather")
_PLAIN_ALLGATHERV: Final = find_method("Allgatherv")


class ObjectsOverBuffers(BufferCollectives):
    """mpi4py's lower-case collectives (bcast, gather, ...), which send Python objects by hpccoll's collectives.

    A communicator first exchanges slots: one buffer of fixed size per rank, with the object if it fits.
    """

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on all ranks; `obj` of other ranks is ignored. Collective."""
        slots = self._enter_objects("bcast", root)
        if slots is None:
            return _PLAIN_OBJECTS["bcast"](self, obj, root)
        encoded = slots.write(obj) if slots.rank == root else None
        if not slots.run("bcast", slots.own, None, root):
            _PLAIN_BCAST(self, slots.own, root)
        item = slots.small.read(slots.own_view)
        slots.leave("bcast", root, are_small=item is not NotImplemented)
        if item is not NotImplemented:
            return item
        header = ObjectHeader(slots.own_view)
        if slots.fits(header):
            return decode(header, slots.own_view, HEADER_BYTES)
        data = np.empty(header.nbytes, np.uint8) if encoded is None else encoded.flatten()
        self._run_collective(Operation.BROADCAST, data, None, root=root)
        return decode(header, data, copy=encoded is not None)

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        """Reduce all ranks' `sendobj` by `op`, and return the result on all ranks. Collective."""
        slots = self._enter_objects("allreduce") if _is_predefined(op) else None
        if slots is not None:
            encoded = self._gather_slots(slots, "allreduce", sendobj)
            items, headers = slots.read_all()
            slots.leave("allreduce", 0, are_small=not headers)
            if items is not None:
                return _combine(items, op)
            name = _find_array_reduction(headers, op)
            if name is not None and encoded is not None:
                return self._reduce_arrays(Operation.ALL_REDUCE, encoded, headers, name, 0)
        return _PLAIN_OBJECTS["allreduce"](self, sendobj, op)

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        """Reduce all ranks' `sendobj` by `op`, and return the result on the root, None on other ranks. Collective."""
        slots = self._enter_objects("reduce", root) if _is_predefined(op) else None
        if slots is not None:
            encoded = self._gather_slots(slots, "reduce", sendobj, root)
            items, headers = slots.read_all()
            slots.leave("reduce", root, are_small=not headers)
            if items is not None:
                return _combine(items, op) if slots.rank == root else None
            name = _find_array_reduction(headers, op)
            if name is not None and encoded is not None:
                return self._reduce_arrays(Operation.REDUCE, encoded, headers, name, root)
        return _PLAIN_OBJECTS["reduce"](self, sendobj, op, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the list of the `sendobj` of all ranks on every rank, in rank order. Collective."""
        slots = self._enter_objects("allgather")
        if slots is None:
            gathered: list[Any] = _PLAIN_OBJECTS["allgather"](self, sendobj)
            return gathered
        encoded = self._gather_slots(slots, "allgather", sendobj)
        items, headers = slots.read_all()
        slots.leave("allgather", 0, are_small=not headers)
        if items is not None:
            return items
        if encoded is not None and _are_equal_arrays(headers):
            blocks = np.empty((len(headers), encoded.nbytes), np.uint8)
            self._run_collective(Operation.ALL_GATHER, encoded.flatten(), blocks)
            return [decode(header, block, copy=False) for header, block in zip(headers, blocks, strict=True)]
        counts = [0 if slots.fits(header) else header.nbytes for header in headers]
        own = np.empty(0, np.uint8) if encoded is None or not counts[slots.rank] else encoded.flatten()
        data, starts = self._gather_bytes(slots, own, counts), np.cumsum([0, *counts])
        return [
            slots.decode(header, rank) if slots.fits(header) else decode(header, data, int(starts[rank]))
            for rank, header in enumerate(headers)
        ]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the list of the `sendobj` of all ranks on the root, in rank order; None on other ranks. Collective."""
        slots = self._enter_objects("gather", root)
        if slots is None:
            gathered: list[Any] | None = _PLAIN_OBJECTS["gather"](self, sendobj, root)
            return gathered
        encoded = slots.write(sendobj)
        # In shared memory, an all_gather takes less time than the MPI library's gather, and all ranks see all headers.
        if slots.run("gather", slots.own, slots.all, root):
            slots.leave("gather", root, are_small=slots.small.are_all_small(slots.all_view))
        else:
            _PLAIN_GATHER(self, slots.own, slots.all if slots.rank == root else None, root)
        if slots.rank != root:
            if encoded is not None and encoded.nbytes > slots.inline_bytes:
                slots.communicator.send(encoded.flatten(), root)
            return None
        items, headers = slots.read_all()
        return items or [
            slots.decode(header, rank) if slots.fits(header) else _receive(slots.communicator, header, rank, encoded)
            for rank, header in enumerate(headers)
        ]

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Return element r of the root's sequence `sendobj` on each rank r. Collective."""
        slots = self._enter_objects("scatter", root)
        if slots is None:
            return _PLAIN_OBJECTS["scatter"](self, sendobj, root)
        encoded = slots.write_items(sendobj, slots.all_view) if slots.rank == root else []
        if not slots.run("scatter", slots.all if encoded else None, slots.own, root):
            _PLAIN_SCATTER(self, slots.all if encoded else None, slots.own, root)
        are_small = bool(slots.own_view[MARK])
        for rank, item in enumerate(() if are_small else encoded):
            if item is not None and rank != root and item.nbytes > slots.inline_bytes:
                slots.communicator.send(item.flatten(), rank)
        slots.leave("scatter", root, are_small=are_small)
        received = slots.small.read(slots.own_view)
        if received is not NotImplemented:
            return received
        header = ObjectHeader(slots.own_view)
        if slots.fits(header):
            return decode(header, slots.own_view, HEADER_BYTES)
        return _receive(slots.communicator, header, root, encoded[root] if encoded else None)

    def alltoall(self, sendobj: Any) -> list[Any]:
        """Send element r of `sendobj` to each rank r; return the list of the elements sent to this rank. Collective."""
        slots = self._enter_objects("alltoall")
        if slots is None:
            exchanged: list[Any] = _PLAIN_OBJECTS["alltoall"](self, sendobj)
            return exchanged
        if slots.sent is None:
            slots.sent = np.zeros_like(slots.all)
        encoded = slots.write_items(sendobj, slots.sent.reshape(-1).data)
        if not slots.run("alltoall", slots.sent, slots.all):
            _PLAIN_ALLTOALL(self, slots.sent, slots.all)
        return _exchange_rest(slots.communicator, slots, encoded)

    def _enter_objects(self, use: str, root: int = 0) -> ObjectSlots | None:
        """Return the buffers (slots) in which mpi4py's method `use` exchanges objects over hpccoll. Collective.

        Returns None if mpi4py must carry out the call.
        """
        state = self._state
        slots: ObjectSlots | None = None if state is None else state.slots.get((use, root))
        return slots or self._prepare_slots(use, root)

    def _prepare_slots(self, use: str, root: int) -> ObjectSlots | None:
        """Count a call of mpi4py's method `use`; return its buffers, or None, as `_enter_objects` does. Collective."""
        if not get_configuration().runs_objects or not hasattr(root, "__index__") or not 0 <= root < self.size:
            return None
        state = self._find_state()
        if state is None:
            return None
        operation = SLOT_OPERATIONS[use]
        at = index(root) if operation.has_root else 0
        key = use, at
        if state.count_early(key):
            return None
        if not state.is_due((operation, SUM, BYTES, count_slot_bytes(state.size), at), OBJECT_WORTH, key):
            return None
        slots: ObjectSlots = next(iter(state.slots.values()), None) or ObjectSlots.make(state)
        for size in (slots, slots.other):
            if size is not None:
                size.prepare(use, root)
        state.slots[use, root] = slots
        return slots

    def _gather_slots(self, slots: ObjectSlots, use: str, sendobj: Any, root: int = 0) -> EncodedObject | None:
        """Write `sendobj` into this rank's slot, and collect the slots of all ranks in `slots.all`. Collective.

        `use` and `root` are mpi4py's method and its root. Returns the encoded object; None if it is small (at most
        SMALL_BYTES).
        """
        encoded = slots.write(sendobj)
        if not slots.run(use, slots.own, slots.all, root):
            _PLAIN_ALLGATHER(self, slots.own, slots.all)
        return encoded

    def _gather_bytes(self, slots: ObjectSlots, own: Any, counts: list[int]) -> Any:
        """Return the bytes of all ranks, in rank order, as one array on every rank. Collective.

        `own` are this rank's bytes, and `counts` the numbers of bytes of all ranks. The MPI library gathers up to
        MOST_MPI_BYTES, because hpccoll would leave the first calls with new counts to the MPI library anyway.
        """
        if sum(counts) > MOST_MPI_BYTES:
            return slots.communicator.all_gather(own, counts=counts)
        data = np.empty(sum(counts), np.uint8)
        _PLAIN_ALLGATHERV(self, own, (data, counts))
        return data

    def _run_collective(self, operation: Operation, x: Any, out: Any, op: str = SUM, root: int = 0) -> None:
        """Run a collective on arrays with the bytes or elements of objects, over hpccoll or by MPI. Collective.

        `x` is the input, and `out` the array for the result; `out` is None if the result overwrites `x`, or if this
        rank gets no result.
        """
        communicator, state = self._bind_table(), find_acceleration(self)
        algorithm = state.select(operation, op, x.dtype, x.size, root)
        if algorithm is None and (x.dtype not in list_element_types() or x.nbytes * state.size > MOST_MPI_BYTES):
            algorithm = AUTO  # mpi4py may not take the element type, and MPI before version 4 not the size
        if algorithm is None:
            _run_plain(self, operation, x, out, getattr(MPI, op.upper()), root)
        else:
            communicator._collective(operation, x, out, op, root, algorithm, False)

    def _reduce_arrays(
        self, operation: Operation, encoded: EncodedObject, headers: list[ObjectHeader], op: str, root: int
    ) -> Any:
        """Reduce the arrays that all ranks passed as objects; return a new array, or None without a result. Collective.

        If only some of the arrays are in Fortran order, all are reduced in C order.

        Args:
            operation: all_reduce or reduce.
            encoded: this rank's array.
            headers: the element types, shapes and orders of all ranks' arrays.
            op: the name of the reduction.
        """
        header = headers[self.rank]
        data = encoded.flatten()
        is_mixed = len({other.order for other in headers}) > 1
        if is_mixed and header.order:
            data = make_array(header, data, copy=False).ravel("C").view(np.uint8)
        x = data.view(header.dtype)
        out = np.empty_like(x) if operation is Operation.ALL_REDUCE or self.rank == root else None
        self._run_collective(operation, x, out, op, root)
        if out is None:
            return None
        header.order = 0 if is_mixed else header.order
        return to_library(make_array(header, out, copy=False), header.library, header.device)


def _run_plain(comm: Any, operation: Operation, x: Any, out: Any, op: MPI.Op, root: int) -> None:
    """Run a collective by mpi4py's own method; the arguments are those of `_run_collective`. Collective."""
    method = _PLAIN_METHODS[operation]
    if operation is Operation.BROADCAST:
        method(comm, x, root)
    elif operation is Operation.ALL_GATHER:
        method(comm, x, out)
    elif operation is Operation.REDUCE:
        method(comm, x, out, op, root)
    else:
        method(comm, x, out, op)


def _is_predefined(op: Any) -> bool:
    """Whether `op` is one of MPI's predefined reductions, such as MPI.SUM, and not a function of the user."""
    return isinstance(op, MPI.Op) and op.is_predefined


def _combine(items: list[Any], op: Any) -> Any:
    """Return the reduction by `op` of the objects of all ranks, combined in the same pairs as by mpi4py.

    `items` are the objects in rank order, and are overwritten.
    """
    distance = 1
    while distance < len(items):
        for rank in range(0, len(items) - distance, 2 * distance):
            items[rank] = op(items[rank], items[rank + distance])
        distance *= 2
    return items[0]


def _are_equal_arrays(headers: list[ObjectHeader]) -> bool:
    """Whether all ranks' objects, which `headers` describe, are arrays of equal library, dtype, shape and device."""
    first = headers[0]
    return first.kind == ARRAY and all(header.layout == first.layout for header in headers)


def _find_array_reduction(headers: list[ObjectHeader], op: Any) -> str | None:
    """Return the name of the MPI reduction `op` if hpccoll can reduce all ranks' objects as arrays by it, else None.

    `headers` describe the objects of all ranks.
    """
    from hpccoll.arrays import DTYPES

    name = find_reduction(op)
    if name is None or not _are_equal_arrays(headers):
        return None
    dtype = headers[0].dtype
    is_supported = any(dtype == supported.numpy for supported in DTYPES.values())
    return name if dtype.kind in _ARITHMETIC.get(name, "") and is_supported else None


def _receive(communicator: Communicator, header: ObjectHeader, source: int, own: EncodedObject | None) -> Any:
    """Receive the bytes of an object from rank `source`, and return the object; `header` describes it.

    If `source` is this rank, the result is a copy of `own`.
    """
    if own is not None and source == communicator.rank:
        return decode(header, own.flatten())
    data = np.empty(header.nbytes, np.uint8)
    communicator.recv(data, source)
    return decode(header, data, copy=False)


def _exchange_rest(communicator: Communicator, slots: ObjectSlots, encoded: list[EncodedObject | None]) -> list[Any]:
    """Exchange the objects of an alltoall that did not fit into `slots`; return the list of all objects for this rank.

    The ranks have exchanged the slots before this call. `encoded` has this rank's objects for all ranks, with None in
    place of small objects. Collective.
    """
    (items, headers), rank = slots.read_all(), communicator.rank
    if items is not None and not any(item is not None and item.nbytes > slots.inline_bytes for item in encoded):
        return items
    sources = [source for source, header in enumerate(headers) if source != rank and not slots.fits(header)]
    received = {source: np.empty(headers[source].nbytes, np.uint8) for source in sources}
    works: list[Any] = [communicator.irecv(data, source) for source, data in received.items()]
    for dest, item in enumerate(encoded):
        if item is not None and dest != rank and item.nbytes > slots.inline_bytes:
            works.append(communicator.isend(item.flatten(), dest))
    for work in works:
        work.wait()
    if items is not None:
        return items
    own, objects = encoded[rank], []
    for source, header in enumerate(headers):
        if source in received:
            objects.append(decode(header, received[source], copy=False))
        elif own is not None and not slots.fits(header):
            objects.append(decode(header, own.flatten()))
        else:
            objects.append(slots.decode(header, source))
    return objects
