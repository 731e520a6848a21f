"""The types of the native extension. Addresses, sizes and offsets are in bytes."""

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

REMOTE_TILE_BYTES: Final[int]
SOURCE_DIGEST: Final[str]

class Reducer:
    """A reduction of two arrays, out = left op right, which is called with their addresses and their bytes.

    Args:
        function: a ufunc of NumPy; for half types the number of a function; or a function of the user, which takes
            three buffers of bytes: left, right and out. The function must not use the buffers after it returns.
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
    def __call__(self, left: int, right: int, out: int, nbytes: int) -> None:
        """Reduce the `nbytes` bytes at the addresses `left` and `right` into the memory at `out`."""

class MemoryTable:
    """The memories that a program accesses by number: input, output, scratch and shared memory of the node's ranks.

    Args:
        addresses: the address of each memory.
        processes: the id of the process that owns each memory, 0 for this process; empty if all memories can be
            accessed at addresses of this process.
        keep: an object that is kept alive as long as the table, such as the owner of the memories.
    """

    def __new__(cls, addresses: list[int], processes: list[int], keep: object) -> Self: ...

class Program:
    """The checked instructions (copies, reductions, messages, fences) by which one rank carries out a collective.

    Args:
        instructions: shape (instructions, 8); `Instruction` in interpreter.h has the columns.
        limits: the size of each memory.
        reducer: the reduction that instructions REDUCE compute; None if there are none.
        divider: the division that instructions DIVIDE compute, for averages; None if there are none.
        tile_bytes: the size of the tiles by which reductions are computed, a multiple of the element size.
        bounce_offset: where the scratch memory has the buffer for memory of other processes; negative if there is none.
        requests: the number of MPI requests that the messages need; 0 without messages.
        ranks: the number of ranks that exchange the messages; 0 without messages.

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
    def __len__(self) -> int:
        """Return the number of instructions."""

    def execute(self, memories: MemoryTable, source: int, result: int, at: int, /) -> int:
        """Execute from instruction `at` to the next fence, and return the fence's number, or at the end the length.

        `source` and `result` are the addresses of input and output.
        """

    def run(self, barrier: NodeBarrier, memories: MemoryTable, source: int, result: int, at: int, /) -> None:
        """Execute from instruction `at` to the end; wait in `barrier` for the node's ranks at each fence."""

class ArrivalCounter:
    """One rank's handle of counters in shared memory: each rank of a node counts its arrivals in a line.

    Args:
        lines: the words of the node's ranks, shape (ranks, 8 or more), initially zero.
        row: the row of this rank in `lines`.
    """

    def __init__(self, lines: NDArray[np.uint64], row: int) -> None: ...
    @property
    def count(self) -> int:
        """The number of this rank's arrivals."""

    def arrive(self) -> None:
        """Count this rank's arrival without waiting; ranks that see it also see what this rank has stored before."""

    def all_arrived(self) -> bool:
        """Whether every rank of the node has arrived at least as often as this rank."""

class NodeBarrier(ArrivalCounter):
    """A barrier of the ranks of one node in shared memory, in which the ranks also compare the calls that they make.

    A fence of the barrier is one wait of all ranks for each other: `fence`, or `arrive` and then `all_arrived`.

    Args:
        lines, row: see `ArrivalCounter`.
        oversubscribed: whether there are more ranks than cores; if so, a wait yields the core sooner.
        attend: called now and then in a long wait; returns whether it advanced operations in flight.
        in_flight, transfers: dicts that are not empty while there are operations in flight.
    """

    next_slot: int  # the slot, 0 or 1, with which the next staged collective begins
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
    def parity(self) -> int:
        """The number of the next fence modulo 2."""

    def fence(self) -> None:
        """Block until all ranks of the node have called `fence`; then this rank sees what they stored before."""

    def enter(self, entry: int, source: int = 0, result: int = 0, /) -> bool | None:
        """Publish this rank's call, wait until all ranks of the node have done so, and return `compare()`.

        `entry` is the fingerprint of the call; `source` and `result` are the locations of input and output.
        """

    def post(self, entry: int, source: int = 0, result: int = 0, /) -> None:
        """Publish this rank's call without blocking; the arguments are those of `enter`."""

    def compare(self) -> bool | None:
        """Whether all ranks can access each other's buffers in place; None if their calls differ."""

    def locations(self) -> tuple[int, ...]:
        """Return the published locations of the other ranks' inputs and outputs, two per rank."""

    def retract(self) -> None:
        """Let no other rank pass a fence any more."""

    def free(self) -> None:
        """Release the barrier's shared memory."""

class EntryRing:
    """The ring of entries in a flight recorder's file, in the format of hpccoll/recordings/layout.py.

    Args:
        memory: the writable memory of the whole file.
        begin: where the ring begins in `memory`, in words of 8 bytes.
        entries: the number of entries that the ring has room for.
        started_word, ended_word, failed_word: the words of an entry that have the times of start and end, and whether
            the call failed.
        round_word: the word of `memory` that has the round of the collective that is running.
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
    def __call__(self) -> tuple[int, int, int]:
        """Take the next entry; return its serial number, and where it is in the memory in bytes and in words."""

class CallCounter:
    """The calls of a rank on a communicator.

    `count` is the number of collectives that the rank has begun, `messages` that of messages between two ranks,
    `current` the call that the rank is in, and `thread` the identifier of the thread that began this call. If `is_lost`
    is set, because a rank has died, each call that ends raises the error of its method `raise_loss`. The process kills
    itself in call number `kill_at`, if it is not 0.
    """

    count: int
    messages: int
    current: Any
    thread: int
    is_lost: bool
    kill_at: int

class HostCall:
    """A collective with fixed operation, element type and sizes on arrays in host memory."""

    def __call__(self, source: int, result: int, /) -> None:
        """Carry out the collective on the input at `source` and the output at `result`; block until it is done."""

class StagedCall(HostCall):
    """A collective of the ranks of one node that copies input and output through the slots (shared memory).

    Args:
        tables: the memories of runs that begin with slot 0 and with slot 1.
        segments: the number of segments, which use the slots in turn.
        in_entry: whether the data are so small that the ranks publish them with their calls instead of in the slots.
        fingerprint: a number by which ranks notice that they call different collectives.
        calls, ring, name, description: the counter of calls, and what the flight recorder notes of a call.
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

    def __len__(self) -> int:
        """Return the number of buffers."""

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
    """A collective of the ranks of one node, in which ranks access each other's buffers without a copy to slots.

    Args:
        table: the memories of the program; the last ones are the other ranks' buffers, which each run sets.
        peers: finds the other ranks' buffers.
        fingerprint: see `StagedCall`.
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
    """An asynchronous collective that has been called; it begins when the previous one in its queue is done."""

    @property
    def has_begun(self) -> bool:
        """Whether the previous collectives of the queue are done."""

    def advance(self) -> bool:
        """Advance the collective without blocking, and return whether it is done.

        From the first call on, the progress thread advances it, too.
        """

    def wait(self) -> bool:
        """Block until the collective is done; the progress thread does not advance it meanwhile."""

    def is_settled(self) -> bool:
        """Whether other ranks no longer read this rank's memory for the collective; lets MPI advance."""

    def finish(self) -> None:
        """Let the next collective of the queue begin after this one has failed."""

    def abandon(self) -> None:
        """Take the collective from the progress thread."""

class NodeRun(QueuedRun):
    """An asynchronous collective of the ranks of one node, which the progress thread advances, too.

    Args:
        staged: the staged call; None if the slots have no room for the plan.
        direct: the direct call; None if this rank's buffers do not permit access in place.
        source, result: the addresses of input and output.
        previous: the collective that must be done before this one begins; None if there is none.
        before: called before the collective begins; None if there is nothing to do.
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
    """The programs of the segments into which a two-level collective splits its data.

    Args:
        programs: the program of each segment.
        tables: the memories of the programs, one table per slot; segments use the slots in turn.
    """

    def __new__(cls, programs: tuple[Program, ...], tables: tuple[MemoryTable, ...]) -> Self: ...

class PipelineCall:
    """A collective over several nodes that works on each node in shared memory and between nodes by MPI messages.

    Args:
        library: the functions of the MPI library.
        comm, first_tag: the handle of the communicator, and the tag of the first slot's messages; the others follow.
        barrier: where the node's ranks compare their calls.
        slots: for each slot, the counter by which the node's ranks wait for each other.
        fingerprint: see `StagedCall`.
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
    """An asynchronous two-level collective, which the progress thread advances, too.

    Args:
        call: the collective.
        staged: the segments through the slots; they run if a rank's buffers do not permit access in place.
        source, result, previous, before, keep: see `NodeRun`.
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
    """Finds the prepared collective for a call of the user, by operation, shapes, types and the other arguments.

    The arrays of calls are NumPy arrays or torch tensors. Calls are of the same kind if one prepared collective can
    carry them out.

    Args:
        array_type: numpy.ndarray.
        in_flight: a dict; while it is not empty, no call of a kind that needs this is found.
        shared, owner: see `DirectCall`.
    """

    def __new__(
        cls, array_type: type[Any], in_flight: dict[Any, None], shared: SharedBuffers, owner: object
    ) -> Self: ...
    def __len__(self) -> int:
        """Return the number of kinds of calls."""

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
        calls_left: Any,
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
            calls_left: an array of one int64, the number of calls that `call` may carry out, which each call decreases;
                None for no limit.
        """

    def accept_tensors(self, tensor_type: type[Any], strided: object, /) -> None:
        """Accept torch tensors of type `tensor_type` with the layout `strided` (torch.strided) from now on."""

    def clear(self) -> None:
        """Forget all kinds of calls."""

class TableMethod:
    """A method that runs a call in the CallTable of its object, or else calls a Python function.

    Args:
        function: a function of the object and the arguments of the call.
        table_name: the name of the object's attribute that is the CallTable.
        names: the names of the function's parameters after `self`.
        roles: the meaning of each parameter: an argument of `CallTable.run`, or "none" or "false" if the table carries
            out only calls with this value.
        defaults: the default values of the parameters.
        missing: the object that stands for the default value of a parameter without one.
        positional: the number of parameters that may be given without their names.
        fixed: the arguments of `CallTable.run` for which there is no parameter.
    """

    __qualname__: str

    def __new__(
        cls,
        function: Callable[..., Any],
        table_name: str,
        names: tuple[str, ...],
        roles: tuple[str, ...],
        defaults: tuple[object, ...],
        missing: object,
        positional: int,
        fixed: tuple[object, ...],
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

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
    def poll(self) -> None:
        """Let MPI advance all communication of this process."""

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

    done: bool  # read-only: whether a wait or test has found that the message is complete or has failed

    @property
    def source(self) -> int | None:
        """The rank that sent a message which has been received; else None."""

    @property
    def awaited(self) -> Any:
        """A context manager for a wait for the message; None if the message is done."""

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the message is complete; return the received array, or None for a send."""

    def test(self) -> bool:
        """Let MPI advance, and return whether the message is complete."""

class MessageCall(HostCall):
    """A collective with fixed operation, element type and sizes that consists of MPI messages between ranks.

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
    def start(self, source: int, result: int, tag: int, keep: object, /) -> MessageRun:
        """Return an asynchronous collective on the input at `source` and the output at `result`.

        Its messages have the tag `tag`. `keep` is kept alive until it is done.
        """

class MessageRun:
    """An asynchronous collective of MPI messages, which the progress thread advances, too."""

    def advance(self) -> bool:
        """Advance the collective without blocking, and return whether it is done."""

    def abandon(self) -> None:
        """Take the collective from the progress thread."""

    def is_settled(self) -> bool:
        """Let MPI advance, and return whether MPI no longer reads the memory of messages that were begun to be sent."""

def configure_progress(library: MpiFunctions, cores_per_rank: float, /) -> None:
    """Set which MPI functions the progress thread calls, and how long it pauses, given the cores per rank."""

def set_polling(polls: bool, /) -> None:
    """Set whether the progress thread lets MPI advance while no collective is in flight."""

def stop_progress() -> None:
    """End the progress thread until the next operation in flight."""

def hold_progress() -> None:
    """Let the progress thread call nothing until `release_progress`."""

def release_progress() -> None:
    """Let the progress thread go on after `hold_progress`."""

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

    pickled_bytes: int  # bytes of the pickled objects of the current call
    is_active: bool  # whether calls are recorded
    @property
    def last_end_ns(self) -> int:
        """The time at which the previous call ended, in nanoseconds of the monotonic clock."""

    @property
    def last_site_id(self) -> int:
        """The id of the place in the program that made the previous call."""

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
    ) -> None:
        """Write the entry of a call that Python code has timed; hpccoll/profile/layout.py describes the fields."""

    def write_wait(self, op: int, begin_ns: int, end_ns: int, operations: list[Any], /) -> None:
        """Write the entries of a wait, at the call site of the previous call: one per operation that it completes."""

    def find_comm(self, comm: object, /) -> int:
        """Return the id of a communicator."""

    def forget(self, comm: object, /) -> None:
        """Forget a communicator that will be freed."""

class TracedCall:
    """A function that writes an entry of a trace when it is called; hpccoll/profile/traced_methods.py makes them.

    `arguments` maps what the entry contains to the index of a positional argument and its name as a keyword. `comm` is
    the communicator of all calls; None if it is among the arguments. `after`, if given, is called with each result.
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
        comm: object = None,
        after: Callable[[Any], object] | None = None,
        /,
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def replace_attribute(cls: type[Any], name: str, value: object, /) -> Any:
    """Replace an attribute of a type, also of one that Python code cannot change, and return the previous value."""
