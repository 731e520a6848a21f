"""The kinds of calls by plans, the base class of executables of plans, and the state that executables share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hpccoll.native import EntryRing
from hpccoll.runtime.arrays import FlatArray, ScratchPool
from hpccoll.runtime.collective_call import (
    CollectiveCall,
    bind_epilogue,
    bind_prologue,
    describe_call,
    without_arrays,
)
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.selection import Selection

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.plan import Algorithm, Plan
    from hpccoll.runtime.lowering import Program


BLOCKING_TAG: Final = 1  # the MPI tag of blocking plans of messages, of which each ends before the next begins
NATIVE_CALLS: Final = 256  # most native calls that are kept
Native = TypeVar("Native")


@dataclass(frozen=True, slots=True)
class Context:
    """The state that the executables of one communicator share.

    `lower(algorithm, chunks, root, count, itemsize, in_place, on_device, staged, sizes)` returns this rank's program
    (its instructions) from a cache. `staged` selects loads and stores in shared-memory slots. `sizes` is the number of
    elements of each chunk in a program for one segment, otherwise None.
    `takes_device_memory` returns whether MPI accepts device memory; its first call may start probe processes.
    Blocking plans of messages use `scratch`; plans that use shared memory, of which one runs at a time also if they are
    asynchronous, use `shared_scratch`.
    """

    comm: MPI.Intracomm
    node: NodeMemory
    progress: Progress
    state: CallRecorder
    scratch: ScratchPool
    lower: Callable[..., Program]
    takes_device_memory: Callable[[], bool]
    shared_scratch: ScratchPool = field(default_factory=ScratchPool)
    native: dict[Hashable, Any] = field(default_factory=dict)

    def get_native(self, key: Hashable, make: Callable[[], Native]) -> Native:
        """Return the native call with the key `key`; `make` makes it at the first request."""
        native: Native | None = self.native.get(key)
        if native is None:
            if len(self.native) >= NATIVE_CALLS:
                self.native.clear()
            native = self.native[key] = make()
        return native


@dataclass(frozen=True, slots=True, eq=False)
class PlanKind:
    """A kind of calls by a plan: calls that agree in everything but the addresses of their arrays.

    Args:
        call: a call of this kind, without arrays.
        in_place: whether each chunk that is in both input and output is at the same address in both.
    """

    context: Context
    algorithm: Algorithm | None
    chunks: int
    call: CollectiveCall
    in_place: bool

    @property
    def nbytes(self) -> tuple[int, int]:
        """The bytes of input and output."""
        source, result = (buffer.nbytes if buffer else 0 for buffer in (self.call.source, self.call.result))
        return source, result

    def lower(self, sizes: tuple[int, ...] | None = None, *, staged: bool = False) -> Program:
        """Return this rank's program (its instructions) for calls of this kind, from the communicator's cache.

        `sizes` is the number of elements of each chunk, for a program that works on one segment; None for whole chunks.
        `staged` selects loads and stores in shared-memory slots instead of the users' arrays.
        """
        call = self.call
        shape = call.root, call.count, call.dtype.itemsize, self.in_place, call.module.on_device
        return self.context.lower(self.algorithm, self.chunks, *shape, staged, sizes)

    def make_key(self, form: str) -> tuple[Hashable, ...]:
        """Return the key of a native call in `Context.native`; `form` names a variant, such as `staged`."""
        call = self.call
        shape = call.operation, call.root, call.count, call.dtype.name, call.reduction.key, self.in_place, *self.nbytes
        return form, self.algorithm, self.chunks, *shape

    def get_compared_arguments(self) -> tuple[object, ...]:
        """Return the arguments that must be equal on all ranks of a node, in the order of COMPARED_ARGUMENTS."""
        call, algorithm = self.call, self.algorithm
        memory = "device" if call.module.on_device else "host"
        name = algorithm.name if algorithm else ""
        arguments = (name, self.chunks, call.root, call.count, call.dtype.name, call.reduction.name)
        return (call.operation.value, *arguments, memory)

    def describe(self) -> bytes:
        """Return the common part of the calls' entries in the flight recorder."""
        return describe_call(self.context.state, self.call, self.algorithm)

    def get_entry(self) -> tuple[CallRecorder, EntryRing, str, bytes]:
        """Return the recorder arguments of a native call: `calls`, `ring`, `name` and `description`."""
        state = self.context.state
        return state, state.recorder.take_entry, self.call.operation.value, self.describe()


class PlanExecutable(Executable):
    """The base class of executables that run plans; if `scratch` is None, scratch memory is the communicator's."""

    __slots__ = ("_after", "_algorithm", "_before", "_begin", "_call", "_context", "_kind", "_scratch", "_state")

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__()
        self._context, self._algorithm, self._state = context, selection.algorithm, context.state
        self._scratch = scratch or context.scratch
        self._call, self._before, in_place = bind_prologue(call, context.comm.rank)
        self._after = bind_epilogue(call, context.comm.size)
        self._kind = PlanKind(context, selection.algorithm, selection.chunks, without_arrays(self._call), in_place)
        self._begin = partial(context.state.begin, call.operation.value, self._kind.describe())

    @property
    def algorithm(self) -> Algorithm | None:
        """The algorithm of the plan."""
        return self._algorithm

    @property
    def plan(self) -> Plan:
        """The plan that this executable runs."""
        return self._lower().plan

    def _lower(self) -> Program:
        """Return this rank's program (its instructions)."""
        return self._kind.lower()

    def _take_scratch(self, count: int) -> FlatArray:
        """Return `count` elements of scratch memory, which later operations overwrite."""
        return self._scratch.take(self._call.module, self._call.dtype, count)

    def bind(self) -> None:
        """Prepare for many runs; only messages in device memory need it."""

    def free(self) -> None:
        """Release memory and bound functions; a later run raises UsageError."""
        super().free()
        self._before, self._after = (), ()
        self._call = without_arrays(self._call)
