"""Compare the cost of hpccoll's calls with raw mpi4py, in batches.

The first cases compare kinds of calls of all_reduce. `library.bind` is MPI's own all-reduce as hpccoll binds it, a
lower bound for a prepared call. The other sides separate the exchange from the overhead of the call. On one rank there
is no exchange.

The cases of new arrays compare all_reduce, broadcast and all_gather of NumPy arrays and torch tensors. Every call gets
arrays that no call got before; the arrays are allocated and written before the batch, which is not timed.

The script then times MPI's own collectives in blocking, persistent and non-blocking form. The constant `PERSISTENT` in
hpccoll/runtime/messages/mpi_collectives.py is based on these times.

    mpirun -n 2 python bench/call_overhead.py --json call_overhead.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from compare import Bench, Case, Floats, Must, Side, all_reduce_check
from mpi4py import MPI
from script import Result, main

from hpccoll.communicator import Communicator
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.messages.mpi_calls import METHODS
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.units import KiB, MiB

BATCH, FEWEST_CALLS, BATCH_BYTES = 100, 4, 4 * MiB  # calls per sample: fewer of long messages
NEW_ARRAY_OPERATIONS = (Operation.ALL_REDUCE, Operation.BROADCAST, Operation.ALL_GATHER)
RAW = "mpi4py Allreduce(IN_PLACE, x)"
FORMS_BYTES, FORMS_BATCH = (8, 64 * 1024), (100, 20)


def measure(bench: Bench) -> Iterator[Result]:
    """Yield cases that compare kinds of calls, cases of new arrays, and cases that compare forms of MPI's calls."""
    for nbytes in bench.sizes:
        yield from time_kinds_of_calls(bench, np.zeros(max(nbytes // 4, 1), np.float32))
    libraries = ["NumPy", "torch"] if find_spec("torch") else ["NumPy"]
    for operation in NEW_ARRAY_OPERATIONS:
        for library in libraries:
            for nbytes in bench.sizes:
                yield bench.run(NewArrays(bench, operation, nbytes, library).make_case())
    for operation in Operation:
        for nbytes, batch in zip(FORMS_BYTES, FORMS_BATCH, strict=True):
            if operation is not Operation.BARRIER or nbytes == FORMS_BYTES[0]:
                yield from time_forms(bench, operation, nbytes, batch)


def count_calls(nbytes: int) -> int:
    """Return the number of calls per sample for messages of `nbytes` bytes."""
    return min(BATCH, max(BATCH_BYTES // nbytes, FEWEST_CALLS))


def time_kinds_of_calls(bench: Bench, x: Floats) -> Iterator[Case]:
    """Time every kind of call of all_reduce on one array."""
    comm, own = bench.comm, bench.own
    # Asynchronous calls use a communicator of their own, because they make later blocking calls on it slower.
    with Communicator(comm) as apart:
        prepared, bound = own.all_reduce_init(x), library_bound(comm, x)
        sides = [
            Side(RAW, partial(comm.Allreduce, MPI.IN_PLACE, x)),
            Side("mpi4py again (A/A)", partial(comm.Allreduce, MPI.IN_PLACE, x)),
            Side("mpi4py Allreduce, ready spec", partial(comm.Allreduce, MPI.IN_PLACE, [x, MPI.FLOAT], MPI.SUM)),
            Side("library.bind", bound, (Must("no slower than mpi4py", RAW),)),
            Side("prepared op()", prepared, (Must("no slower than mpi4py", RAW),)),
            Side("all_reduce(x), seen before", partial(own.all_reduce, x), (Must("mpi4py + 1 us", RAW, us=1.0),)),
            Side("all_reduce(x, async_op).wait()", waited(apart, x)),
        ]
        yield bench.run(Case("all_reduce", x.nbytes, count_calls(x.nbytes), sides, check=all_reduce_check(comm, x)))
        prepared.free()
        bound.free()


def library_bound(comm: MPI.Intracomm, x: Floats) -> Any:
    """Return MPI's own all-reduce of `x` in place, as hpccoll binds it."""
    call = check_call(Operation.ALL_REDUCE, x, None, comm.rank, comm.size)
    return MpiCollectives(comm, Progress(), CallRecorder(), lambda: False).bind(call)


def waited(own: Communicator, x: Floats) -> Callable[[], object]:
    """Return a function that starts an asynchronous all-reduce and waits for it."""
    return lambda: own.all_reduce(x, async_op=True).wait()


class NewArrays:
    """Calls of raw mpi4py and of hpccoll on arrays of `library` (NumPy or torch) that no call got before.

    `nbytes` is the size of the message, which is the whole output of an all_gather.
    """

    def __init__(self, bench: Bench, operation: Operation, nbytes: int, library: str) -> None:
        self._comm, self._own, self._operation, self._library = bench.comm, bench.own, operation, library
        self._count, self._calls = operation.count_elements(nbytes, 4, bench.comm.size), count_calls(nbytes)
        self._nbytes = operation.message_bytes(self._count, 4, bench.comm.size)
        self._ready: list[tuple[Any, Any]] = []

    def make_case(self) -> Case:
        """Return the case; every sample begins with new arrays."""
        must = self._require()
        raw, own = self._raw_call(), self._own_call()
        name = f"mpi4py {METHODS[self._operation]}, bare arrays"
        sides = [
            Side(name, lambda: raw(*self._take())),
            Side("mpi4py again (A/A)", lambda: raw(*self._take())),
            Side(self._operation.value, lambda: own(*self._take()), (must(name),)),
        ]
        case = f"{self._operation.value}, new, {self._library}"
        return Case(case, self._nbytes, self._calls, sides, before=self._allocate)

    @property
    def _has_output(self) -> bool:
        """Whether the operation gets an output of its own."""
        return self._operation is Operation.ALL_GATHER

    def _require(self) -> Callable[[str], Must]:
        """Return a function that makes the requirement of this size against a side."""
        if self._nbytes < 16 * KiB:
            us = 6.0 if self._library == "NumPy" else 8.0
            return lambda name: Must(f"mpi4py + {us:.0f} us", name, us=us)
        most = 1.15 if self._nbytes <= 256 * KiB else 1.05
        return lambda name: Must(f"at most {most}x", name, times=1 / most)

    def _raw_call(self) -> Callable[[Any, Any], object]:
        """Return mpi4py's call as a function of input and output."""
        comm = self._comm
        if self._operation is Operation.ALL_REDUCE:
            return lambda x, _: comm.Allreduce(MPI.IN_PLACE, x)
        if self._operation is Operation.BROADCAST:
            return lambda x, _: comm.Bcast(x)
        return comm.Allgather

    def _own_call(self) -> Callable[[Any, Any], object]:
        """Return hpccoll's call as a function of input and output."""
        call = getattr(self._own, self._operation.value)
        return (lambda x, out: call(x, out=out)) if self._has_output else (lambda x, _: call(x))

    def _allocate(self) -> None:
        """Replace the arrays of the previous batch by new ones, all of them written."""
        self._ready = [self._make_arrays() for _ in range(self._calls)]

    def _make_arrays(self) -> tuple[Any, Any]:
        """Return a new input and a new output (None if the operation works in place)."""
        counts = [self._count, self._count * self._comm.size if self._has_output else 0]
        arrays = [np.full(count, 0, np.float32) if count else None for count in counts]
        if self._library == "torch":
            torch: Any = import_module("torch")
            arrays = [None if array is None else torch.zeros(len(array)) for array in arrays]
        return arrays[0], arrays[1]

    def _take(self) -> tuple[Any, Any]:
        """Return arrays that no call got before."""
        return self._ready.pop() if self._ready else self._make_arrays()


def time_forms(bench: Bench, operation: Operation, nbytes: int, batch: int) -> Iterator[Case]:
    """Time the blocking, the persistent and the non-blocking form of one of MPI's collectives."""
    comm, name = bench.comm, METHODS[operation]
    arguments = make_mpi_arguments(comm, operation, nbytes)
    request = getattr(comm, f"{name}_init")(*arguments)
    issue = partial(getattr(comm, f"I{name.lower()}"), *arguments)
    sides = [
        Side("blocking", partial(getattr(comm, name), *arguments)),
        Side("blocking again (A/A)", partial(getattr(comm, name), *arguments)),
        Side("persistent", lambda: (request.Start(), request.Wait())),
        Side("non-blocking", lambda: issue().Wait()),
    ]
    yield bench.run(Case(f"MPI {operation.value}", max(nbytes, 1), batch, sides))
    request.Free()


def make_mpi_arguments(comm: MPI.Intracomm, operation: Operation, nbytes: int) -> tuple[Any, ...]:
    """Return the arguments of one of MPI's collectives: a vector or blocks of `nbytes`, root 0."""
    root, count, at_root = 0, nbytes // 8, comm.rank == 0
    block, whole, other = ((np.zeros(count * many), count, MPI.DOUBLE) for many in (1, comm.size, comm.size))
    return {
        Operation.ALL_REDUCE: (MPI.IN_PLACE, block, MPI.SUM),
        Operation.REDUCE: (MPI.IN_PLACE if at_root else block, block if at_root else None, MPI.SUM, root),
        Operation.BROADCAST: (block, root),
        Operation.ALL_GATHER: (block, whole),
        Operation.REDUCE_SCATTER: (whole, block, MPI.SUM),
        Operation.GATHER: (block, whole if at_root else None, root),
        Operation.SCATTER: (whole if at_root else None, block, root),
        Operation.ALL_TO_ALL: (whole, other),
        Operation.SCAN: (MPI.IN_PLACE, block, MPI.SUM),
        Operation.EXSCAN: (MPI.IN_PLACE, block, MPI.SUM),
        Operation.BARRIER: (),
    }[operation]


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,1K,16K,64K,256K,4M", measure))
