"""The slots of a communicator, one per rank, which the collectives of objects exchange first (see `objects.py`)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hpccoll.communicator import Communicator
from hpccoll.errors import UsageError
from hpccoll.mpi4py.acceleration import Acceleration
from hpccoll.mpi4py.objects import FLOAT, HEADER_BYTES, INTEGER, PICKLE, SCALAR, ObjectHeader, decode
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM

MOST_INLINE_BYTES: Final = 4096  # of an object in a slot
SLOTS_BYTES: Final = 2**18  # of the slots of all ranks, if there are many
LEAST_INLINE_BYTES: Final = 256
FEWEST_LEFT, MOST_LEFT = 8, 256  # calls that mpi4py carries out after one of small objects
SMALL_KINDS: Final = frozenset((PICKLE, SCALAR, FLOAT, INTEGER))
SLOT_OPERATIONS: Final = {  # the collectives on slots that carry out the collectives of objects
    Operation.ALL_REDUCE: Operation.ALL_GATHER,
    Operation.REDUCE: Operation.ALL_GATHER,
    Operation.ALL_GATHER: Operation.ALL_GATHER,
    Operation.GATHER: Operation.ALL_GATHER,
    Operation.BROADCAST: Operation.BROADCAST,
    Operation.SCATTER: Operation.SCATTER,
    Operation.ALL_TO_ALL: Operation.ALL_TO_ALL,
}
_BROADCAST: Final = Operation.BROADCAST  # a look-up in an Enum takes longer than that of a global name


class ObjectSlots:
    """The slots of one communicator: one for this rank's object, and one per rank for those received or scattered.

    `algorithms` has the algorithms of the collectives on slots that have run before, by mpi4py's operation and root;
    None stands for the MPI library's collective. `left` has, for each of these operations and roots, the number of next
    calls that mpi4py carries out, because the latest objects were small and no arrays, which take less time in mpi4py.
    All ranks know the kinds of all objects, so the numbers are the same on all ranks.
    """

    def __init__(self, state: Acceleration) -> None:
        self.state, self.rank, self.ranks = state, state.rank, state.size
        self.nbytes = count_slot_bytes(state.size)
        self.inline_bytes = self.nbytes - HEADER_BYTES
        self.own: Any = np.zeros(self.nbytes, np.uint8)
        self.all: Any = np.zeros((self.ranks, self.nbytes), np.uint8)
        self.sent: Any = None  # of alltoall
        flat: Any = self.all.reshape(-1)
        self.own_view, self.all_view = self.own.data, flat.data
        self.algorithms: dict[tuple[Operation, int], str | None] = {}
        self.left: dict[tuple[Operation, int], int] = {}
        self._lengths: dict[tuple[Operation, int], int] = {}

    @property
    def communicator(self) -> Communicator:
        """The hpccoll communicator of all objects that do not fit into slots."""
        communicator = self.state.communicator
        if communicator is None:
            raise UsageError("this communicator was freed; use one that is open, or free it later")
        return communicator

    def run(self, use: Operation, x: Any, out: Any, root: int = 0) -> bool:
        """Run a collective on slots; return False if the caller must call the MPI library's collective instead."""
        algorithm = self.algorithms[use, root]
        if algorithm is None:
            return False
        communicator, operation = self.communicator, SLOT_OPERATIONS[use]
        root = root if operation is _BROADCAST else 0
        if communicator._run_in_table(operation, x, out, SUM, root, algorithm, None) is NotImplemented:
            communicator._collective(operation, x, out, SUM, root, algorithm, False)
        return True

    def note_objects(self, use: Operation, root: int, *, are_small: bool) -> None:
        """Leave the next calls of an operation to mpi4py if the latest objects were small; more each time."""
        key = use, root
        if are_small:
            self._lengths[key] = self.left[key] = min(2 * self._lengths.get(key, FEWEST_LEFT // 2), MOST_LEFT)
        else:
            self._lengths.pop(key, None)

    def read_headers(self) -> list[ObjectHeader]:
        """Return the headers of all ranks' slots."""
        return [ObjectHeader(self.all_view, offset) for offset in range(0, self.all.nbytes, self.nbytes)]

    def fits(self, header: ObjectHeader) -> bool:
        """Whether the bytes of an object are in its slot."""
        return bool(header.nbytes <= self.inline_bytes)

    def is_small(self, header: ObjectHeader) -> bool:
        """Whether an object is no array, and its bytes are in its slot."""
        return header.kind in SMALL_KINDS and self.fits(header)

    def decode(self, header: ObjectHeader, rank: int) -> Any:
        """Return the object in the slot of a rank."""
        return decode(header, self.all_view, rank * self.nbytes + HEADER_BYTES)

    def decode_all(self, headers: list[ObjectHeader]) -> list[Any] | None:
        """Return the objects of all ranks; None if one of them does not fit into its slot."""
        for header in headers:
            if header.nbytes > self.inline_bytes:
                return None
        return [
            decode(header, self.all_view, offset)
            for header, offset in zip(headers, range(HEADER_BYTES, self.all.nbytes, self.nbytes), strict=True)
        ]


def count_slot_bytes(ranks: int) -> int:
    """Return the bytes of a slot on a number of ranks."""
    return HEADER_BYTES + max(LEAST_INLINE_BYTES, min(MOST_INLINE_BYTES, SLOTS_BYTES // ranks // 64 * 64))
