"""What the executables of one communicator share, and what all executables that run plans have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpccoll.plan import Plan
from hpccoll.runtime.arrays import FlatArray, ScratchPool
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue
from hpccoll.runtime.executable import raise_freed
from hpccoll.runtime.lowering import Program
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.progress import Progress
from hpccoll.selection import Selection

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Context:
    """What the executables of one communicator share.

    `lower(algorithm, chunks, root, count, itemsize, in_place, on_device, staged, sizes)` returns this rank's program,
    cached; `staged` says whether loads and stores go through slots, `sizes` are the elements of each chunk where the
    program is for a segment. `takes_device_memory` says whether MPI may be given device memory.
    """

    comm: MPI.Intracomm
    node: NodeMemory
    progress: Progress
    scratch: ScratchPool
    lower: Callable[..., Program]
    takes_device_memory: Callable[[], bool]


class PlanExecutable:
    """The common part of executables that run plans.

    Args:
        context: of the communicator.
        call: the collective.
        selection: the algorithm and the number of chunks.
        scratch: where scratch is taken from; the communicator's own, unless the operation is asynchronous.
    """

    __slots__ = (
        "__weakref__",
        "_after",
        "_algorithm",
        "_before",
        "_call",
        "_chunks",
        "_context",
        "_in_place",
        "_scratch",
        "live",
    )

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None
    ) -> None:
        self._context, self._algorithm, self._chunks = context, selection.algorithm, selection.chunks
        self._scratch = scratch or context.scratch
        self._call, self._before, self._in_place = bind_prologue(call, context.comm.rank)
        self._after = bind_epilogue(call, context.comm.size)
        self.live = True

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._lower().plan

    def _lower(self, sizes: tuple[int, ...] | None = None, *, staged: bool = False) -> Program:
        """Return this rank's program; see `Context.lower`."""
        call = self._call
        on_device = call.module.on_device
        return self._context.lower(
            self._algorithm,
            self._chunks,
            call.root,
            call.count,
            call.dtype.itemsize,
            self._in_place,
            on_device,
            staged,
            sizes,
        )

    def _take_scratch(self, count: int) -> FlatArray:
        return self._scratch.take(self._call.module, self._call.dtype, count)

    def _describe(self) -> tuple[object, ...]:
        """Return what all ranks of a node must agree on, in the order of `shared_memory.node.FACTS`."""
        call, algorithm = self._call, self._algorithm
        memory = "device" if call.module.on_device else "host"
        name = algorithm.name if algorithm else ""
        arguments = (name, self._chunks, call.root, call.count, call.dtype.name, call.reduction.name)
        return (call.operation.value, *arguments, memory)

    def free(self) -> None:
        """Release all memory; the executable cannot run after."""
        self.live, self._before, self._after = False, (), ()
        self._call = replace(self._call, source=None, result=None, value=None)

    def _require_live(self) -> None:
        if not self.live:
            raise_freed()
