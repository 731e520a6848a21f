"""The base class of executables that run plans, and the state that the executables of one communicator share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hpccoll.native import MessageCall, StagedCall
from hpccoll.runtime.arrays import BoundCall, FlatArray, ScratchPool
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue, describe_call
from hpccoll.runtime.executable import ReplaceablePartial, raise_freed
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.selection import Selection

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.plan import Algorithm, Plan
    from hpccoll.runtime.lowering import Program


NATIVE_PROGRAMS: Final = 256  # most native programs that are kept
Programs = TypeVar("Programs")


@dataclass(frozen=True, slots=True)
class Context:
    """The state that the executables of one communicator share.

    `lower(algorithm, chunks, root, count, itemsize, in_place, on_device, staged, sizes)` returns this rank's program
    (its instructions) from a cache. `staged` selects loads and stores in shared-memory slots. `sizes` is the number of
    elements of each chunk in a program for one segment, otherwise None.
    `takes_device_memory` returns whether MPI accepts device memory; its first call may start probe processes.
    """

    comm: MPI.Intracomm
    node: NodeMemory
    progress: Progress
    state: CallRecorder
    scratch: ScratchPool
    lower: Callable[..., Program]
    takes_device_memory: Callable[[], bool]
    native: dict[Hashable, Any] = field(default_factory=dict)

    def get_native(self, kind: Hashable, make: Callable[[], Programs]) -> Programs:
        """Return the native program or programs of a kind of calls, made by `make` at the first call."""
        program: Programs | None = self.native.get(kind)
        if program is None:
            if len(self.native) >= NATIVE_PROGRAMS:
                self.native.clear()
            program = self.native[kind] = make()
        return program


class PlanExecutable(ReplaceablePartial):
    """The base class of executables that run plans; if `scratch` is None, scratch memory is the communicator's."""

    __slots__ = (
        "_after", "_algorithm", "_before", "_begin", "_call", "_chunks", "_context", "_in_place",
        "_scratch", "_state", "live", "operation",
    )  # fmt: skip

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None
    ) -> None:
        self._context, self._algorithm, self._chunks = context, selection.algorithm, selection.chunks
        self._scratch = scratch or context.scratch
        self._call, self._before, self._in_place = bind_prologue(call, context.comm.rank)
        self._after = bind_epilogue(call, context.comm.size)
        self.live, self._state = True, context.state
        self._begin = context.state.bind(call.operation.value, describe_call(context.state, call, selection.algorithm))
        self.operation: InFlight | None = None  # the latest asynchronous run

    @property
    def algorithm(self) -> Algorithm | None:
        """The algorithm of the plan."""
        return self._algorithm

    @property
    def plan(self) -> Plan:
        """The plan that this executable runs."""
        return self._lower().plan

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls of a run, to time one by one; empty if nothing is bound."""
        return ()

    @property
    def in_flight(self) -> bool:
        """Whether an asynchronous run has begun and is not done."""
        return self.operation is not None and not self.operation.done

    def _lower(self, sizes: tuple[int, ...] | None = None, *, staged: bool = False) -> Program:
        """Return this rank's program (its instructions) by `Context.lower`."""
        call = self._call
        shape = call.root, call.count, call.dtype.itemsize, self._in_place, call.module.on_device
        return self._context.lower(self._algorithm, self._chunks, *shape, staged, sizes)

    def _get_program_key(self, form: str) -> tuple[Hashable, ...]:
        """Return the cache key of a native program; `form` tells the programs of one collective apart."""
        call = self._call
        sizes = tuple(buffer.nbytes if buffer else 0 for buffer in (call.source, call.result))
        shape = call.root, call.count, call.dtype.name, call.reduction.key, self._in_place, *sizes
        return form, self._algorithm, self._chunks, *shape

    def _take_scratch(self, count: int) -> FlatArray:
        """Return `count` elements of scratch memory, which later operations overwrite."""
        return self._scratch.take(self._call.module, self._call.dtype, count)

    def _describe(self) -> tuple[object, ...]:
        """Return the arguments that must be equal on all ranks of a node, in the order of `node_memory.node.FACTS`."""
        call, algorithm = self._call, self._algorithm
        memory = "device" if call.module.on_device else "host"
        name = algorithm.name if algorithm else ""
        arguments = (name, self._chunks, call.root, call.count, call.dtype.name, call.reduction.name)
        return (call.operation.value, *arguments, memory)

    def bind(self) -> None:
        """Prepare for many runs; only messages in device memory need it."""

    def run_once(self) -> None:
        """Run once without binding anything for later runs."""
        self()

    def make_unbound(self) -> MessageCall | StagedCall | None:
        """Return the same program for any plain arrays, which keeps no array; None if a run needs an executable."""
        return None

    def free(self) -> None:
        """Release memory and bound functions; a later run raises UsageError."""
        self.live, self._before, self._after = False, (), ()
        self._call = replace(self._call, source=None, result=None, value=None)

    def abandon(self) -> None:
        """Refuse later runs and release nothing; for a forked child process, in which MPI cannot be used."""
        self.live = False

    def _require_live(self) -> None:
        """Raise UsageError if the executable was freed."""
        if not self.live:
            raise_freed()
