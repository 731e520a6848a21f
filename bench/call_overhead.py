"""Compare the cost of each kind of hpccoll call with raw mpi4py: all_reduce of 8 bytes, in batches.

`library.bind` is MPI's own all-reduce as hpccoll binds it, a lower bound for a prepared call. The other sides separate
the exchange from the overhead of the call. On one rank there is no exchange.

The script then times MPI's own collectives in blocking, persistent and non-blocking form. The constant `PERSISTENT` in
hpccoll/runtime/messages/mpi_collectives.py is based on these times.

    mpirun -n 2 python bench/call_overhead.py --json call_overhead.jsonl
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from compare import Bench, Case, Floats, Must, Side, all_reduce_check
from mpi4py import MPI
from script import Result, main

from hpccoll.communicator import Communicator
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.call_cache import SEEN_CAPACITY
from hpccoll.runtime.messages.mpi_calls import METHODS
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.progress import Progress

BATCH = 100
RAW = "mpi4py Allreduce(IN_PLACE, x)"
FORMS_BYTES, FORMS_BATCH = (8, 64 * 1024), (100, 20)


def measure(bench: Bench) -> Iterator[Result]:
    """Yield cases that compare kinds of calls per size, then cases that compare forms of MPI's collectives."""
    for nbytes in bench.sizes:
        yield from time_kinds_of_calls(bench, np.zeros(max(nbytes // 4, 1), np.float32))
    for operation in Operation:
        for nbytes, batch in zip(FORMS_BYTES, FORMS_BATCH, strict=True):
            if operation is not Operation.BARRIER or nbytes == FORMS_BYTES[0]:
                yield from time_forms(bench, operation, nbytes, batch)


def time_kinds_of_calls(bench: Bench, x: Floats) -> Iterator[Case]:
    """Time every kind of call of all_reduce on one array, then on new arrays."""
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
        yield bench.run(Case("all_reduce", x.nbytes, BATCH, sides, check=all_reduce_check(comm, x)))
        prepared.free()
        bound.free()
    yield bench.run(make_uncached_case(bench, x))


def library_bound(comm: MPI.Intracomm, x: Floats) -> Any:
    """Return MPI's own all-reduce of `x` in place, as hpccoll binds it."""
    call = check_call(Operation.ALL_REDUCE, x, None, comm.rank, comm.size)
    return MpiCollectives(comm, Progress(), lambda: False).bind(call)


def waited(own: Communicator, x: Floats) -> Callable[[], object]:
    """Return a function that starts an asynchronous all-reduce and waits for it."""
    return lambda: own.all_reduce(x, async_op=True).wait()


def make_uncached_case(bench: Bench, x: Floats) -> Case:
    """Return the case of raw calls and of hpccoll's calls on arrays that are not in its call cache."""
    comm, own = bench.comm, bench.own
    pool = [np.zeros_like(x) for _ in range(2 * SEEN_CAPACITY)]

    def each(call: Callable[[Floats], object]) -> Callable[[], object]:
        following = itertools.cycle(pool)
        return lambda: call(next(following))

    sides = [
        Side("mpi4py Allreduce, bare array", each(partial(comm.Allreduce, MPI.IN_PLACE))),
        Side("mpi4py again (A/A)", each(partial(comm.Allreduce, MPI.IN_PLACE))),
        Side("all_reduce(x), never seen", each(own.all_reduce)),
    ]
    return Case("all_reduce, new arrays", x.nbytes, BATCH, sides)


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
        Operation.BARRIER: (),
    }[operation]


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8", measure))
