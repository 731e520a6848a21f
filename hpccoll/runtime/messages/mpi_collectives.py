"""The MPI library's own collectives as what carries out a job: the one way that is no plan.

Who calls which form must be alike on all ranks, since MPI matches blocking, non-blocking and persistent collectives
only with their own kind (MPI 4.1, 6.12 and 6.13). So nothing that differs by rank may decide it: neither whether a
buffer was seen before, nor whether an asynchronous operation is still under way here. What decides:

* Until the first asynchronous operation of a communicator, the blocking form: nothing else can be under way.
* From then on the non-blocking form, which is tested between the others' progress.
* Prepared operations, which all ranks prepare together, may be persistent instead: where `PERSISTENT` says so.

Cost: a bound call is one C call behind a `functools.partial`, on buffer specifications that are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakSet

from mpi4py import MPI

from hpccoll.plan import Operation
from hpccoll.runtime.arrays import BoundCall, Buffer, DType, FlatArray, Reduction
from hpccoll.runtime.collective_call import CollectiveCall, bind_epilogue, bind_prologue
from hpccoll.runtime.messages.executable import freed

OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
# On truth values MPI has logical operations only: the least is "all", the greatest "any".
LOGICAL = {"min": "LAND", "max": "LOR", "band": "LAND", "bor": "LOR", "bxor": "LXOR"}
DATATYPES = {
    "bool": "C_BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
# What is only moved goes as any datatype of its size.
MOVED = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T", 16: "C_DOUBLE_COMPLEX"}
NAMES = {
    Operation.ALL_REDUCE: "Allreduce",
    Operation.REDUCE: "Reduce",
    Operation.BROADCAST: "Bcast",
    Operation.ALL_GATHER: "Allgather",
    Operation.REDUCE_SCATTER: "Reduce_scatter_block",
    Operation.GATHER: "Gather",
    Operation.SCATTER: "Scatter",
    Operation.ALL_TO_ALL: "Alltoall",
    Operation.BARRIER: "Barrier",
}
# Where the persistent form was no slower than the blocking one, at 8 bytes and at 64 KiB, on two ranks of one host
# (bench/call_overhead.py). Elsewhere it was slower: Open MPI's Reduce of 64 KiB takes three times as long.
PERSISTENT = {
    "MPICH": (Operation.BARRIER,),
    "Open MPI": (Operation.GATHER, Operation.SCATTER, Operation.ALL_TO_ALL),
}
MOST_ELEMENTS = 2**31 - 1  # that MPI counts before MPI 4


def means_the_same(operation: Operation, dtype: DType, reduction: Reduction) -> bool:
    """Return whether the MPI library's result is what hpccoll promises, but for the order of a sum's roundings.

    No: the least and greatest of floats (NaN and signed zeros); 16-bit floats, which not every library has; sums of
    scaled inputs; and sums of 8-bit and 16-bit integers, which Open MPI saturates where NumPy wraps round (its issue
    8045, not to be changed).
    """
    if not operation.reduces:
        return True
    if dtype.name not in DATATYPES:
        return False
    if dtype.kind == "b":
        return reduction.name in LOGICAL
    if dtype.kind == "i":
        return reduction.name in OPS and (reduction.name != "sum" or dtype.itemsize >= 4)
    return reduction.name in ("sum", "prod", "avg")


class LibraryExecutable(partial[object]):
    """A collective of the MPI library on buffers: call it as often as you like; free it before MPI ends.

    A Python function of its own would cost a call 0.2 us, so this *is* the `functools.partial` of what MPI offers, and
    what it calls is exchanged when it is freed, or when the first asynchronous operation begins.
    """

    plan = None
    live = True
    beside: BoundCall  # the form to take from the first asynchronous operation on
    request: MPI.Prequest | None = None
    memories: tuple[FlatArray, ...] = ()  # kept alive: specifications know only addresses

    def free(self) -> None:
        """Give what is held back to MPI; the executable cannot run after."""
        self.live, self.memories = False, ()
        self.beside = freed
        self.call_instead(freed)
        if self.request is not None:
            self.request.Free()
            self.request = None

    def call_instead(self, call: BoundCall) -> None:
        """Call something else from now on."""
        state: Any = self  # whose type stubs lack what copying a partial goes through
        state.__setstate__((call, (), {}, self.__dict__))


@dataclass(slots=True)
class Underway:
    """A non-blocking collective under way; `advance` looks whether it is done, and then does what comes after."""

    request: MPI.Request
    after: tuple[BoundCall, ...]
    memories: tuple[FlatArray, ...]  # kept alive: MPI still reads or writes them
    done: bool = False

    def advance(self) -> bool:
        """Return whether all is done. Never blocks."""
        if not self.done and self.request.Test():
            for step in self.after:
                step()
            self.done, self.memories = True, ()
        return self.done


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective of this rank as MPI takes it, what is done before and after it, and the memory it needs."""

    name: str
    arguments: tuple[Any, ...]
    before: tuple[BoundCall, ...]
    after: tuple[BoundCall, ...]
    memories: tuple[FlatArray, ...]

    def around(self, step: BoundCall) -> BoundCall:
        """Return the step with what is done before and after it."""
        return partial(_in_turn, (*self.before, step, *self.after)) if self.before or self.after else step


class Library:
    """The MPI library's collectives on one communicator.

    Args:
        comm: whose ranks take part; used as it is.
        others: the asynchronous operations under way on the communicator.
        progress: carries these on.
        takes_device_memory: whether a probe found that this MPI does; asked only for device buffers.
    """

    def __init__(
        self, comm: MPI.Intracomm, others: Sized, progress: BoundCall, takes_device_memory: Callable[[], bool]
    ) -> None:
        self._comm, self._others, self._progress = comm, others, progress
        self._takes_device_memory = takes_device_memory
        self._persistent = PERSISTENT.get(MPI.get_vendor()[0], ())
        self._counts_far = MPI.Get_version()[0] >= 4
        self._beside = False
        self._bound: WeakSet[LibraryExecutable] = WeakSet()

    def offers(self, job: CollectiveCall) -> bool:
        """Return whether the library carries out a job with the result that hpccoll promises; alike on every rank."""
        if not means_the_same(job.operation, job.dtype, job.reduction):
            return False
        if job.count * (self._comm.size if job.operation.has_blocks else 1) > MOST_ELEMENTS and not self._counts_far:
            return False
        return not job.module.on_device or self._takes_device_memory()

    def bind(self, job: CollectiveCall, *, together: bool = False) -> LibraryExecutable:
        """Return what carries out a job, to be called many times.

        Args:
            job: the collective; `offers` has said yes.
            together: whether all ranks bind it now, in the same order, so that it may be persistent.
        """
        call = self._call(job)
        request, issue, blocking = None, self._non_blocking(call), self._blocking(call)
        if together and job.operation in self._persistent:
            request = getattr(self._comm, f"{call.name}_init")(*call.arguments)
            issue, blocking = partial(_started, request), _both(request.Start, request.Wait)
        beside = call.around(partial(self._carry, issue))
        bound = LibraryExecutable(beside if self._beside else call.around(blocking))
        bound.beside, bound.request, bound.memories = beside, request, call.memories
        self._bound.add(bound)
        return bound

    def run(self, job: CollectiveCall) -> None:
        """Carry out a job once, without binding; see `bind`."""
        call = self._call(job)
        call.around(partial(self._carry, self._non_blocking(call)) if self._beside else self._blocking(call))()

    def start(self, job: CollectiveCall) -> Underway:
        """Begin a job and return at once; see `bind`."""
        self.asynchronous()
        call = self._call(job)
        for step in call.before:
            step()
        return Underway(self._non_blocking(call)(), call.after, call.memories)

    def asynchronous(self) -> None:
        """Take note that an asynchronous operation begins: from now on nothing may block while it waits."""
        if not self._beside:
            self._beside = True
            for bound in self._bound:
                bound.call_instead(bound.beside)

    def _carry(self, issue: Callable[[], MPI.Request]) -> None:
        request = issue()
        if not self._others:
            request.Wait()
            return
        while not request.Test():
            self._progress()

    def _blocking(self, call: _Call) -> BoundCall:
        return partial(getattr(self._comm, call.name), *call.arguments)

    def _non_blocking(self, call: _Call) -> Callable[[], MPI.Request]:
        return partial(getattr(self._comm, f"I{call.name.lower()}"), *call.arguments)

    def _call(self, job: CollectiveCall) -> _Call:
        job, before, in_place = bind_prologue(job, self._comm.rank)
        module, source, result, after = job.module, job.source, job.result, bind_epilogue(job, self._comm.size)
        if job.operation is Operation.REDUCE_SCATTER and in_place and source and result:
            # MPI would take the whole at the result's place and leave every rank's block at the front of it.
            own = module.empty(result.count, job.dtype)
            after = (module.bind_copy(result.flat, own), *after)
            result, in_place = replace(result, flat=own, address=module.get_address(own)), False
        memories = tuple(buffer.flat for buffer in (source, result) if buffer)
        if module.on_device:
            before = (*before, module.synchronize)
        arguments = _arguments(job, _specification(job, source), _specification(job, result), in_place)
        return _Call(NAMES[job.operation], arguments, before, after, memories)


def _specification(job: CollectiveCall, buffer: Buffer | None) -> Any:
    """The memory, how many elements of a block or of the vector, and their MPI datatype: never parsed again."""
    if buffer is None:
        return None
    name = DATATYPES[job.dtype.name] if job.operation.reduces else MOVED[job.dtype.itemsize]
    return MPI.buffer.fromaddress(buffer.address, buffer.nbytes), job.count, getattr(MPI, name)


def _arguments(job: CollectiveCall, source: Any, result: Any, in_place: bool) -> tuple[Any, ...]:
    operation, given = job.operation, MPI.IN_PLACE if in_place else source
    if operation is Operation.BARRIER:
        return ()
    if operation is Operation.BROADCAST:
        return result or source, job.root
    if operation is Operation.SCATTER:
        return source, MPI.IN_PLACE if in_place else result, job.root
    if not operation.reduces:
        return (given, result, job.root) if operation.has_root else (given, result)
    name = "sum" if job.reduction.name == "avg" else job.reduction.name
    op = getattr(MPI, (LOGICAL if job.dtype.kind == "b" else OPS)[name])
    return (given, result, op, job.root) if operation.has_root else (given, result, op)


def _both(first: BoundCall, second: BoundCall) -> BoundCall:
    def call() -> None:
        first()
        second()

    return call


def _in_turn(steps: tuple[BoundCall, ...]) -> None:
    for step in steps:
        step()


def _started(request: MPI.Prequest) -> MPI.Request:
    request.Start()
    return request
