"""The types of the native extension. Addresses, sizes and offsets are in bytes."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

REMOTE_TILE_BYTES: Final[int]
SOURCE_DIGEST: Final[str]

class Reducer:
    """A function of two arrays: out = left op right.

    Args:
        function: a ufunc of NumPy; for half types the number of a function; or a function of the user, which takes
            the addresses of left, right and out, and the number of elements.
        itemsize: bytes per element.
        type_number: the number of the element type in NumPy (`dtype.num`); negative for a function of the user.
        half: 0 for float16, 1 for bfloat16, negative for other types.
        number: the bytes of the right operand of all elements; None if the right operand is an array.
        copies_single: whether to compute a single element outside of the operands' memory.
    """

    def __new__(
        cls,
        function: Any,
        itemsize: int,
        type_number: int,
        half: int,
        number: bytes | None = None,
        copies_single: bool = False,
    ) -> Self: ...
    def __call__(self, left: int, right: int, out: int, nbytes: int) -> None: ...

class MemoryTable:
    """The addresses of a program's memories by number, and the ids of other processes that own them (0: this one).

    `processes` is empty if this process owns all memories or has mapped them. `keep` is kept alive.
    """

    def __new__(cls, addresses: list[int], processes: list[int], keep: object) -> Self: ...

class Program:
    """The checked instructions of one rank.

    Args:
        instructions: shape (instructions, 8); `Instruction` in interpreter.h has the columns.
        limits: the size of each memory.
        reducer: the reduction of REDUCE.
        divider: the division of DIVIDE.
        tile_bytes: the size of a tile of reductions.
        bounce_offset: where the buffer for memory of other processes is in SCRATCH; negative if there is none.

    Raises:
        ValueError: an instruction accesses bytes outside of its memories, or is wrong in another way.
    """

    def __new__(
        cls,
        instructions: NDArray[np.int64],
        limits: NDArray[np.int64],
        reducer: Reducer | None = None,
        divider: Reducer | None = None,
        tile_bytes: int = 1,
        bounce_offset: int = -1,
        requests: int = 0,
        ranks: int = 0,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def execute(self, memories: MemoryTable, source: int, result: int, at: int, /) -> int: ...
    def run(self, barrier: NodeBarrier, memories: MemoryTable, source: int, result: int, at: int, /) -> None: ...

class ArrivalCounter:
    """One rank's handle of counters in shared memory: each rank of a node counts its arrivals in a line.

    Args:
        lines: the words of the node's ranks, shape (ranks, 8 or more), initially zero.
        row: the row of this rank in `lines`.
    """

    def __init__(self, lines: NDArray[np.uint64], row: int) -> None: ...
    @property
    def count(self) -> int: ...
    def arrive(self) -> None: ...
    def all_arrived(self) -> bool: ...

class NodeBarrier(ArrivalCounter):
    """A barrier of the ranks of one node in shared memory; `arrive` begins a fence that `all_arrived` ends.

    Args:
        lines, row: see `ArrivalCounter`.
        oversubscribed: whether there are more ranks than cores; if so, a wait yields the core sooner.
        attend: called now and then in a long wait; returns whether it advanced operations in flight.
        in_flight, transfers: dicts that are not empty while there are operations in flight.
    """

    next_slot: int
    def __init__(
        self,
        lines: NDArray[np.uint64],
        row: int,
        oversubscribed: bool,
        attend: Callable[[], bool],
        in_flight: dict[Any, None],
        transfers: dict[Any, None],
    ) -> None: ...
    @property
    def parity(self) -> int: ...
    def fence(self) -> None: ...
    def enter(self, entry: int, source: int = 0, result: int = 0, /) -> bool | None: ...
    def post(self, entry: int, source: int = 0, result: int = 0, /) -> None: ...
    def compare(self) -> bool | None: ...
    def locations(self) -> tuple[int, ...]: ...
    def free(self) -> None: ...

class EntryRing:
    """Takes the entries of a flight recorder in turn; places are those of hpccoll/runtime/recorder/layout.py.

    A call returns the serial number of the entry, and its place in bytes and in words.
    """

    def __new__(
        cls, memory: object, begin: int, entries: int, ended_word: int, failed_word: int, round_word: int
    ) -> Self: ...
    def __call__(self) -> tuple[int, int, int]: ...

class CallCounter:
    """The calls of a rank on a communicator: `count` is their number, and `current` the one that the rank is in."""

    count: int
    current: Any

class StagedCall:
    """A blocking collective of one kind through the slots of a node; called with the addresses of input and output.

    Args:
        tables: the memories of runs that begin with slot 0 and with slot 1.
        segments: the number of segments, which use the slots in turn.
        in_entry: whether the payload is in the entries of the barrier instead of the slots.
        fingerprint: identifies the call and its arguments.
        calls, ring, name, description: what the flight recorder notes.
        raise_mismatch: raises the error if ranks called different collectives.
    """

    def __new__(
        cls,
        barrier: NodeBarrier,
        program: Program,
        tables: tuple[MemoryTable, MemoryTable],
        segments: int,
        in_entry: bool,
        fingerprint: int,
        calls: CallCounter,
        ring: EntryRing,
        name: str,
        description: bytes,
        raise_mismatch: Callable[[], object],
    ) -> Self: ...
    def __call__(self, source: int, result: int, /) -> None: ...
    def run_unrecorded(self, source: int, result: int, /) -> None: ...
    def begin(self, source: int, result: int, /) -> int: ...
    def proceed(self, source: int, result: int, at: int, /) -> int: ...

class StagedRun:
    """An asynchronous run of a staged call, which the progress thread advances, too.

    Args:
        call: the staged call; None for a run in Python, which calls `finish` at its end.
        source, result: the addresses of input and output.
        previous: the run of the same barrier that must be done before this one begins.
        keep: an object that is kept alive until the run is done.
    """

    def __new__(
        cls, call: StagedCall | None, source: int, result: int, previous: StagedRun | None, keep: object
    ) -> Self: ...
    def advance(self) -> bool: ...
    def finish(self) -> None: ...
    def abandon(self) -> None: ...

class CallTable:
    """Finds the staged call of a call on NumPy arrays by its kind.

    Args:
        array_type: numpy.ndarray.
        in_flight: a dict; while it is not empty, no call is found.
        shared_starts: a list that is empty if no array is in memory that other ranks have mapped.
    """

    def __new__(cls, array_type: type[Any], in_flight: dict[Any, None], shared_starts: Sequence[int]) -> Self: ...
    def __len__(self) -> int: ...
    def run(self, operation: object, x: object, out: object, op: object, root: object, algorithm: object, /) -> Any: ...
    def add(
        self,
        operation: object,
        dtype: object,
        op: object,
        root: object,
        algorithm: object,
        count: int,
        output_given: bool,
        in_place: bool,
        returns_none: bool,
        divisor: int,
        result_count: int,
        make_output: Callable[[Any], Any] | None,
        call: StagedCall,
    ) -> None: ...
    def clear(self) -> None: ...

class MpiFunctions:
    """The functions of the MPI library, which native code calls by their addresses.

    Args:
        functions: addresses of MPI_Isend, MPI_Irecv, MPI_Isend_c, MPI_Irecv_c, MPI_Test and MPI_Iprobe; 0 for a
            missing function for large messages.
        byte, self: the handles MPI_BYTE and MPI_COMM_SELF.
        any_source, any_tag: MPI_ANY_SOURCE and MPI_ANY_TAG.
        has_pointers: whether handles are pointers.
        is_threaded: whether the progress thread may call MPI.
        raise_error: raises the error for the name of a collective and an error code of MPI.
    """

    def __new__(
        cls,
        functions: Sequence[int],
        byte: int,
        self_comm: int,
        any_source: int,
        any_tag: int,
        has_pointers: bool,
        is_threaded: bool,
        raise_error: Callable[[str, int], object],
    ) -> Self: ...
    def poll(self) -> None: ...

class MessageCall:
    """A collective of messages of one kind; called with the addresses of input and output, it blocks to its end.

    Args:
        program: a program with messages.
        table: the memories of blocking runs: input, output and scratch.
        comm, tag: the handle of the communicator and the tag of blocking runs.
        calls, ring, name, description: what the flight recorder notes.
        oversubscribed, attend, in_flight, transfers: see `NodeBarrier`.
    """

    def __new__(
        cls,
        library: MpiFunctions,
        program: Program,
        table: MemoryTable,
        comm: int,
        tag: int,
        calls: CallCounter,
        ring: EntryRing,
        name: str,
        description: bytes,
        oversubscribed: bool,
        attend: Callable[[], bool],
        in_flight: dict[Any, None],
        transfers: dict[Any, None],
    ) -> Self: ...
    def __call__(self, source: int, result: int, /) -> None: ...
    def start(self, source: int, result: int, tag: int, keep: object, /) -> MessageRun: ...

class MessageRun:
    """A run of a collective of messages in flight, which the progress thread advances, too."""

    def advance(self) -> bool: ...
    def abandon(self) -> None: ...
    def is_sent(self) -> bool: ...

def configure_progress(library: MpiFunctions, oversubscribed: bool, /) -> None: ...
def set_polling(polls: bool, /) -> None: ...
def stop_progress() -> None: ...
