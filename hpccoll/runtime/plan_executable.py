"""The state that the executables of one communicator share, and the base class of executables that run plans."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from hpccoll.arrays import FlatArray, Scratch, take_scratch
from hpccoll.native import EntryRing
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue, without_arrays
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.lowering import Program
    from hpccoll.plan import Algorithm, Count, Plan


BLOCKING_TAG: Final = 1  # the MPI tag of blocking plans of messages, of which each ends before the next begins
NATIVE_CALLS: Final = 256  # most native calls that are kept
PROGRAMS: Final = 256  # most programs that are kept
Native = TypeVar("Native")


class PlanContext:
    """The state that the executables of one communicator share: memory, and caches of plans, programs and native calls.

    `Engine` is the context of a communicator.

    Blocking plans of messages use `scratch`. Plans that use shared memory have `shared_scratch` in common, because only
    one of them runs at a time, even if they are asynchronous.

    Args:
        nodes: the ranks of each node.
        node: the memory that the ranks of this node share.
        takes_device_memory: returns whether MPI accepts device memory; its first call may start probe processes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        nodes: tuple[tuple[int, ...], ...],
        node: NodeMemory,
        progress: Progress,
        state: CallRecorder,
        takes_device_memory: Callable[[], bool],
    ) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.nodes, self.node, self.progress, self.state = nodes, node, progress, state
        self.takes_device_memory = takes_device_memory
        self.scratch: Scratch = {}
        self.shared_scratch: Scratch = {}
        self.native: dict[Hashable, Any] = {}
        self._find_plan = lru_cache(PROGRAMS)(partial(_make_plan, comm.size, nodes))
        self._find_program = lru_cache(PROGRAMS)(partial(_make_program, comm.rank, self._find_plan))

    def plan(self, call: CollectiveCall) -> Plan:
        """Return the plan of the algorithm of `call`, from a cache."""
        return self._find_plan(call.algorithm, call.root, call.chunks)

    def lower(self, call: CollectiveCall, sizes: tuple[int, ...] | None = None, *, staged: bool = False) -> Program:
        """Return this rank's program (its instructions) for calls like `call`, from a cache.

        `sizes` is the number of elements of each chunk, for a program that works on one segment; None for whole chunks.
        `staged` selects loads and stores in shared-memory slots instead of the users' arrays.
        """
        shape = call.count, call.dtype.itemsize, call.in_place, call.module.on_device
        return self._find_program(call.algorithm, call.root, call.chunks, *shape, staged, sizes)

    def get_native(self, key: Hashable, make: Callable[[], Native]) -> Native:
        """Return the native call (run by C code) that is cached under `key`; call `make` if none is cached."""
        native: Native | None = self.native.get(key)
        if native is None:
            if len(self.native) >= NATIVE_CALLS:
                self.native.clear()
            native = self.native[key] = make()
        return native

    def get_recorder_arguments(self, call: CollectiveCall) -> tuple[CallRecorder, EntryRing, str, bytes]:
        """Return the arguments by which a native call counts itself and notes itself in the flight recorder.

        They are the native call's arguments `calls`, `ring`, `name` and `description`. No entry is written.
        """
        return self.state, self.state.recorder.take_entry, call.operation.value, call.describe(self.state)


def _make_plan(size: int, nodes: tuple[tuple[int, ...], ...], algorithm: Algorithm, root: int, chunks: int) -> Plan:
    """Return an algorithm's plan for `size` ranks on `nodes`."""
    plan: Plan = algorithm.plan(size, root, chunks, nodes)
    return plan


def _make_program(
    rank: int,
    plan: Callable[[Algorithm, int, int], Plan],
    algorithm: Algorithm,
    root: int,
    chunks: int,
    count: Count,
    itemsize: int,
    in_place: bool,
    on_device: bool,
    staged: bool,
    sizes: tuple[int, ...] | None,
) -> Program:
    """Lower an algorithm's plan to the program of `rank`; `PlanContext.lower` describes `staged` and `sizes`."""
    from hpccoll.lowering import lower_plan

    elements = None if sizes is None else np.array(sizes, np.int64)
    return lower_plan(
        plan(algorithm, root, chunks), rank, count, itemsize, in_place,
        on_device=on_device, staged=staged, sizes=elements,
    )  # fmt: skip


class PlanExecutable(Executable):
    """The base class of executables that run the plan of a call's algorithm.

    Args:
        scratch: the scratch memory; None means the memory that blocking calls share.
    """

    __slots__ = ("_after", "_before", "_begin", "_call", "_call_without_arrays", "_context", "_scratch", "_state")

    def __init__(self, context: PlanContext, call: CollectiveCall, scratch: Scratch | None = None) -> None:
        super().__init__()
        self._context, self._state = context, context.state
        self._scratch = context.scratch if scratch is None else scratch
        self._call, self._before = bind_prologue(call)
        self._after = bind_epilogue(call, context.size)
        self._call_without_arrays = without_arrays(
            self._call
        )  # native calls refer to it, and must keep no arrays alive
        self._begin = partial(
            context.state.begin, call.operation.value, self._call_without_arrays.describe(context.state)
        )

    @property
    def plan(self) -> Plan:
        """The plan that this executable runs."""
        return self._context.plan(self._call_without_arrays)

    def _find_program(self) -> Program:
        """Return this rank's program (its instructions)."""
        return self._context.lower(self._call_without_arrays)

    def _take_scratch(self, count: int) -> FlatArray:
        """Return an array of `count` elements of scratch memory, which later operations overwrite."""
        return take_scratch(self._scratch, self._call.module, self._call.dtype, count)

    def bind(self) -> None:
        """Prepare for many runs; only messages in device memory need this preparation."""

    def free(self) -> None:
        """Release memory and bound functions; a later run raises UsageError."""
        super().free()
        self._before, self._after = (), ()
        self._call = self._call_without_arrays
