"""The types of the native extension. Addresses, sizes and offsets are in bytes."""

from collections.abc import Callable, Sequence
from types import FrameType
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
    def retract(self) -> None: ...
    def free(self) -> None: ...

class EntryRing:
    """Takes the entries of a flight recorder in turn; places are those of hpccoll/runtime/recorder/layout.py.

    A call returns the serial number of the entry, and its place in bytes and in words.
    """

    def __new__(
        cls,
        memory: object,
        begin: int,
        entries: int,
        started_word: int,
        ended_word: int,
        failed_word: int,
        round_word: int,
    ) -> Self: ...
    def __call__(self) -> tuple[int, int, int]: ...

class CallCounter:
    """The calls of a rank on a communicator.

    `count` is the number of collectives that the rank has begun, `messages` that of messages between two ranks, and
    `current` the call that the rank is in. If `is_lost` is set, because a rank has died, each call that ends raises the
    error of its method `raise_loss`. The process kills itself in call number `kill_at`, if it is not 0.
    """

    count: int
    messages: int
    current: Any
    is_lost: bool
    kill_at: int

class HostCall:
    """A collective of one kind in host memory; a call with the addresses of input and output blocks to its end."""

    def __call__(self, source: int, result: int, /) -> None: ...

class StagedCall(HostCall):
    """A collective of one kind on one node, through the slots.

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

class SharedBuffers:
    """The memory of this process that other ranks can address, by address: symmetric buffers, and memory in files."""

    def __len__(self) -> int: ...
    def add(self, address: int, nbytes: int, location: int, owner: object, bases: list[int], buffer: object, /) -> None:
        """Add a buffer.

        Args:
            location: the location of the buffer's beginning; `Location` in entry.h explains locations.
            owner: identifies the ranks that know the location; None if all ranks of the node do.
            bases: the addresses of the other ranks' memory in the order of the ranks; empty if there are none.
            buffer: what `find` returns.
        """

    def remove(self, address: int, /) -> Any:
        """Remove the buffer that begins at `address`, and return it."""

    def free(self, address: int, /) -> None:
        """Refuse later runs on the buffer that begins at `address`."""

    def find(self, address: int, /) -> Any:
        """Return the buffer that contains `address`; None if none does."""

class Peers:
    """Finds the buffers of the node's other ranks, two for each rank, by the locations that the ranks publish.

    Args:
        processes: the process of each buffer's rank; 0 if its memory cannot be accessed.
        map_locations: returns addresses, processes and an object that keeps the memory alive, for locations that only
            Python can map.
    """

    def __new__(
        cls,
        processes: list[int],
        map_locations: Callable[[tuple[int, ...]], tuple[list[int], list[int], object]],
    ) -> Self: ...

class DirectCall(HostCall):
    """A collective of one kind on one node, in which ranks access each other's buffers in place.

    Args:
        table: the memories; the last ones are those of `peers`, which each run sets.
        shared, owner: where the locations of input and output are found, and the symmetric buffers of the communicator.
        make_staged: returns the staged call that runs if some rank's buffers do not permit access in place.
        calls, ring, name, description: what the flight recorder notes.
        raise_mismatch: raises the error that ranks called different collectives.
    """

    def __new__(
        cls,
        barrier: NodeBarrier,
        program: Program,
        table: MemoryTable,
        peers: Peers,
        fingerprint: int,
        shared: SharedBuffers,
        owner: object,
        make_staged: Callable[[], StagedCall],
        calls: CallCounter,
        ring: EntryRing,
        name: str,
        description: bytes,
        raise_mismatch: Callable[[], object],
    ) -> Self: ...

class QueuedRun:
    """A run in flight in a queue of runs, of which each begins when the previous one is done."""

    @property
    def has_begun(self) -> bool: ...
    def advance(self) -> bool: ...
    def wait(self) -> bool: ...
    def is_settled(self) -> bool: ...
    def finish(self) -> None: ...
    def abandon(self) -> None: ...

class NodeRun(QueuedRun):
    """A run in flight of a plan on one node, which the progress thread advances, too.

    Args:
        staged: the staged call; None if the slots have no room for the plan.
        direct: the direct call; None if this rank's buffers do not permit access in place.
        source, result: the addresses of input and output.
        previous: the run that must be done before this one begins.
        before: a function to call before the run begins.
        keep: an object that is kept alive until the run is done.
    """

    def __new__(
        cls,
        staged: StagedCall | None,
        direct: DirectCall | None,
        source: int,
        result: int,
        previous: QueuedRun | None,
        before: Callable[[], object] | None,
        keep: object,
    ) -> Self: ...

class Segments:
    """The programs of the segments of a two-level collective, and the memories of each slot."""

    def __new__(cls, programs: tuple[Program, ...], tables: tuple[MemoryTable, ...]) -> Self: ...

class PipelineCall:
    """A two-level collective of one kind.

    Args:
        comm, first_tag: the handle of the communicator, and the tag of the first slot's messages; the others follow.
        barrier: where the node's ranks enter.
        slots: the counters of the slots.
        shared, owner: see `DirectCall`.
        peers, direct: the other ranks' buffers, and the segments that access them in place; None if this rank's buffers
            do not permit that.
        last: a program that runs after all segments; None if there is nothing to do.
        name: the name of the collective, for errors.
        raise_mismatch: raises the error that ranks called different collectives.
    """

    def __new__(
        cls,
        library: MpiFunctions,
        comm: int,
        first_tag: int,
        barrier: NodeBarrier,
        slots: tuple[ArrivalCounter, ...],
        fingerprint: int,
        shared: SharedBuffers,
        owner: object,
        peers: Peers | None,
        direct: Segments | None,
        last: Program | None,
        name: str,
        raise_mismatch: Callable[[], object],
    ) -> Self: ...

class PipelineRun(QueuedRun):
    """A run in flight of a two-level collective, which the progress thread advances, too; see `NodeRun`.

    Args:
        staged: the segments through the slots; they run if a rank's buffers do not permit access in place.
    """

    def __new__(
        cls,
        call: PipelineCall,
        staged: Segments,
        source: int,
        result: int,
        previous: QueuedRun | None,
        before: Callable[[], object] | None,
        keep: object,
    ) -> Self: ...

class CallTable:
    """Finds what carries out a call by its kind; the arrays are NumPy arrays or torch tensors.

    The arguments of a call are operation, x, out, op, root, algorithm and counts.

    Args:
        array_type: numpy.ndarray.
        in_flight: a dict; while it is not empty, no call of a kind that needs this is found.
        shared, owner: see `DirectCall`.
    """

    def __new__(
        cls, array_type: type[Any], in_flight: dict[Any, None], shared: SharedBuffers, owner: object
    ) -> Self: ...
    def __len__(self) -> int: ...
    def run(
        self, operation: object, x: object, out: object, op: object, root: object, algorithm: object, counts: object, /
    ) -> Any:
        """Run a call and return its result; NotImplemented if its kind is not known or the arrays are not plain."""

    def find(
        self, operation: object, x: object, out: object, op: object, root: object, algorithm: object, counts: object, /
    ) -> tuple[Any, Any, Any] | None:
        """Return what carries out a call, the array for its result, and the user's result; None if `run` would not."""

    def add(
        self,
        example: tuple[Any, ...],
        call: HostCall | Callable[[Any, Any], object] | object,
        make_output: Callable[[Any], Any] | None,
        in_given: bool,
        returns_none: bool,
        needs_idle: bool,
        nbytes: int,
        result_nbytes: int,
        result_count: int,
        divisor: int,
        rows: int,
    ) -> bool:
        """Let `call` carry out later calls of the same kind as `example`; return False if its arrays are not plain.

        Args:
            example: the arguments of a call.
            call: a native call, or what is called with the arrays of input and output.
            make_output: returns a new output for an input; None if the result is in the input or in `out`.
            in_given: whether the result is in `out`.
            returns_none: whether the user gets None.
            needs_idle: whether the call must not run while operations are in flight.
            nbytes, result_nbytes, result_count: bytes of the input; bytes and elements of the result.
            divisor, rows: a divisor of the input's first dim; and its size, or -1 for any.
        """

    def accept_tensors(self, tensor_type: type[Any], strided: object, /) -> None:
        """Accept tensors of a type, and with a layout, from now on."""

    def clear(self) -> None: ...

class MpiFunctions:
    """The functions of the MPI library, which native code calls by their addresses.

    Args:
        functions: addresses of MPI_Isend, MPI_Irecv, MPI_Isend_c, MPI_Irecv_c, MPI_Test, MPI_Iprobe and MPI_Get_count;
            0 for a missing function for large messages.
        byte: the handle MPI_BYTE.
        polled, polled_tag: the communicator's handle and the tag of the probes that let MPI advance.
        any_source: MPI_ANY_SOURCE.
        source_offset: where a status has the rank of the sender.
        has_pointers: whether handles are pointers.
        is_threaded: whether the progress thread may call MPI.
        raise_error: raises the error for the name of a collective and an error code of MPI.
    """

    def __new__(
        cls,
        functions: Sequence[int],
        byte: int,
        polled: int,
        any_source: int,
        polled_tag: int,
        source_offset: int,
        has_pointers: bool,
        is_threaded: bool,
        raise_error: Callable[[str, int], object],
    ) -> Self: ...
    def poll(self) -> None: ...
    def hand_over(self) -> None:
        """Let Python wait for all messages in flight that messengers have started."""

class SmallObjects:
    """Writes small Python objects into slots of bytes and reads them, in the format of hpccoll/mpi4py/objects.py.

    An object is small if it is a number, or consists of up to 64 numbers and short strings in tuples, lists and dicts.

    Args:
        slot_bytes: the size of a slot.
        most_bytes: the size of the largest pickle of a small object.
        pickle: its methods `dumps` and `loads` pickle the objects that are no numbers.
    """

    def __new__(cls, slot_bytes: int, most_bytes: int, pickle: Any) -> Self: ...
    def write(self, buffer: Any, offset: int, obj: Any, /) -> bool:
        """Write an object into the slot at `offset`; return False, and write nothing, if the object is not small."""

    def write_all(self, buffer: Any, items: Any, /) -> bool:
        """Write a sequence of objects into all slots, and set the last byte of each header to 1.

        Return False if there is another number of objects than of slots, or an object is not small; the slots before it
        are then written.
        """

    def read(self, buffer: Any, /) -> Any:
        """Return the object in the first slot of a buffer; NotImplemented if it is not small."""

    def read_all(self, buffer: Any, /) -> Any:
        """Return the objects in all slots of a buffer as a list; NotImplemented if one is not small."""

    def are_all_small(self, buffer: Any, /) -> bool:
        """Whether the objects in all slots of a buffer are small."""

class MpiCall(HostCall):
    """Calls one kind of collective of the MPI library, and returns when it is complete.

    Args:
        library: the functions of the MPI library.
        function: the address of MPI's function.
        method: the name of its blocking form, such as "Allreduce".
        is_nonblocking: whether the function is the non-blocking form; the call then tests its request until it is
            complete.
        is_large: whether the function takes counts and displacements of 64 bits, as MPI_Allreduce_c does.
        handles: those of the datatype, the reduction and the communicator.
        count: elements of the vector or of each block, or of this rank's block.
        sizes: counts and displacements of blocks of different sizes, a row each; two more rows for the received blocks
            of an Alltoallv. Empty for equal blocks. Of 64 bits if the function `is_large`, else of 32 bits.
        own: the block that this rank sends to itself: offsets in input and output, and size; (0, 0, 0) if MPI moves it.
        places: what MPI gets as input and as output: 0 nothing, 1 the input, 2 the output, 3 `in_place`.
        in_place: the address MPI_IN_PLACE.
        barrier, fingerprint, raise_mismatch: where the node's ranks compare their calls first, or None; what identifies
            the call and its arguments; and what raises the error if they differ.
        calls, ring, name, description: what the flight recorder notes; it notes nothing if `calls` and `ring` are None.
        oversubscribed, attend, in_flight, transfers: see `NodeBarrier`.
    """

    def __new__(
        cls,
        library: MpiFunctions,
        function: int,
        method: str,
        is_nonblocking: bool,
        is_large: bool,
        handles: tuple[int, int, int],
        count: int,
        sizes: NDArray[np.int32] | NDArray[np.int64],
        own: tuple[int, int, int],
        root: int,
        places: tuple[int, int],
        in_place: int,
        barrier: NodeBarrier | None,
        fingerprint: int,
        raise_mismatch: Callable[[], object],
        calls: CallCounter | None,
        ring: EntryRing | None,
        name: str,
        description: bytes,
        oversubscribed: bool,
        attend: Callable[[], bool],
        in_flight: dict[Any, None],
        transfers: dict[Any, None],
    ) -> Self: ...
    def start(self, source: int, result: int, /) -> int:
        """Start the non-blocking form on the addresses of an input and an output, and return its request's handle.

        The flight recorder notes nothing.

        Raises:
            CommunicationError: MPI refuses the call.
        """

class Messenger:
    """Blocking messages between two ranks of a communicator, on NumPy arrays.

    Args:
        library: the functions of the MPI library.
        comm: the handle of the communicator.
        no_rank: MPI_PROC_NULL, which means that a message is neither sent nor received.
        calls, ring: where the messages are counted and recorded.
        array_type: `np.ndarray`.
        work_type: the class of handles, derived from StartedMessage.
        describe: returns the description of a message for its entry, and the bytes per element; its arguments are
            whether the message is sent, the array, the other rank (MPI_ANY_SOURCE for any), and the tag.
        adopt: returns the handle of a message that Python waits for, or raises the error of a message that has failed;
            its arguments are whether the message is sent, its state as in the result of `exchange`, the array, and
            the other rank (None for any).
        oversubscribed: whether ranks share cores.
    """

    def __new__(
        cls,
        library: MpiFunctions,
        comm: int,
        rank: int,
        ranks: int,
        no_rank: int,
        calls: CallCounter,
        ring: EntryRing,
        array_type: type,
        work_type: type[StartedMessage],
        describe: Callable[[bool, Any, int, int], tuple[bytes, int]],
        adopt: Callable[[bool, Any, Any, int | None], Any],
        oversubscribed: bool,
    ) -> Self: ...
    def exchange(self, out: Any, source: Any, recvtag: Any, x: Any, dest: Any, sendtag: Any, /) -> Any:
        """Receive `out` from `source` and send `x` to `dest`; either array may be None.

        Returns:
            The rank of the sender (-1 without a receive) if both messages are complete; NotImplemented if Python has
            to carry them out. Otherwise one is pending or has failed, and the result has for both messages (None
            without a message) whether it is pending, its request, the place of its entry in words, the error number of
            MPI, the bytes received, and the rank of the sender.
        """

    def start(self, sends: bool, x: Any, peer: Any, tag: Any, /) -> Any:
        """Begin to send `x` to rank `peer`, or to receive it; return the handle, or NotImplemented as `exchange`."""

    def close(self) -> None:
        """Leave all messages to Python from now on."""

class StartedMessage:
    """A message in flight, which `Messenger.start` has begun."""

    done: bool  # read-only

    @property
    def source(self) -> int | None: ...
    @property
    def awaited(self) -> Any: ...
    def wait(self, timeout: float | None = None) -> Any: ...
    def test(self) -> bool: ...

class MessageCall(HostCall):
    """A collective of messages of one kind.

    Args:
        program: a program with messages.
        table: the memories of blocking runs: input, output and scratch.
        comm, tag: the handle of the communicator and the tag of blocking runs.
        calls, ring, name, description: what the flight recorder notes; it notes nothing if `calls` and `ring` are None.
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
    def start(self, source: int, result: int, tag: int, keep: object, /) -> MessageRun: ...

class MessageRun:
    """A run of a collective of messages in flight, which the progress thread advances, too."""

    def advance(self) -> bool: ...
    def abandon(self) -> None: ...
    def is_settled(self) -> bool: ...

def configure_progress(library: MpiFunctions, cores_per_rank: float, /) -> None: ...
def set_polling(polls: bool, /) -> None: ...
def stop_progress() -> None: ...
def hold_progress() -> None: ...
def release_progress() -> None: ...
def exit_after(seconds: float, status: int, /) -> None:
    """End the process with `status` after `seconds`, even if a thread holds the GIL; only the first call counts."""

def guard_revocation(slot: int, table_at: int, function_at: int, /) -> None:
    """Keep Open MPI from calling a null pointer when a process dies while a communicator is made.

    Args:
        slot: the address of `mca_pml.pml_revoke_comm`.
        table_at: the offset of `c_coll` in a communicator.
        function_at: the offset of `coll_revoke_local` in the table to which `c_coll` points.
    """

class CallTrace:
    """The entries of the communication calls of a rank, in the layout of hpccoll/profile/layout.py.

    Args:
        memory: writable memory: the header and the ring of entries.
        describe_site: returns the id of the call site of a frame.
        describe_comm: returns the id of a communicator; its argument is None for the default one.
        measure: returns the bytes of a buffer whose form is not an array or [array, datatype].
        fold: called with the serial number of the first entry and the number of entries that will be overwritten.
        from_ns, to_ns: only calls that begin at these times of the monotonic clock are recorded.
        period_ns, every: only the first of every `every` periods is recorded.
    """

    pickled_bytes: int
    is_active: bool
    @property
    def last_end_ns(self) -> int: ...
    @property
    def last_site_id(self) -> int: ...
    def __new__(
        cls,
        memory: object,
        describe_site: Callable[[FrameType], int],
        describe_comm: Callable[[Any], int],
        measure: Callable[[Any], int],
        fold: Callable[[int, int], None],
        from_ns: int,
        to_ns: int,
        period_ns: int,
        every: int,
    ) -> Self: ...
    def write(
        self,
        op: int,
        begin_ns: int,
        end_ns: int,
        nbytes: int,
        request: int,
        comm: int,
        peer: int,
        tag: int,
        site: int,
        flags: int,
        /,
    ) -> None: ...
    def find_comm(self, comm: object, /) -> int: ...
    def forget(self, comm: object, /) -> None: ...

class TracedCall:
    """A function that writes an entry of a trace when it is called; hpccoll/profile/traced_methods.py makes them.

    `arguments` maps what the entry contains to the index of a positional argument and its name as a keyword.
    """

    def __new__(
        cls,
        trace: CallTrace,
        function: Callable[..., Any],
        op: int,
        form: int,
        flags: int,
        default_peer: int,
        default_tag: int,
        counts_pickled: bool,
        binds: bool,
        arguments: dict[str, tuple[int, str | None]],
        /,
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def replace_attribute(cls: type[Any], name: str, value: object, /) -> Any:
    """Replace an attribute of a type, also of one that Python code cannot change, and return the previous value."""
