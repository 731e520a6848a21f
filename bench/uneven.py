"""Compare `auto` with mpi4py for blocks of different sizes, for scans, and for a reduction by a user's function.

The block of rank r has r + 1 parts of the message, in whole elements; in an all_to_all the block from rank i for rank j
has (i + j) mod n + 1 parts. Both libraries use the same arrays in every call, and mpi4py's arguments are made once.

    mpirun -n 2 python bench/uneven.py --json uneven.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from compare import Bench, Case, Must, Side
from mpi4py import MPI
from numpy.typing import NDArray
from script import Result, main

import hpccoll
from hpccoll.plan import Operation

LIBRARY = "mpi4py"
MUST = Must("at most 5 % slower than the MPI library's own", LIBRARY, share=0.05)
CALL = Must("at most 5 % or 1.5 us slower than the MPI library's own", LIBRARY, share=0.05, us=1.5)
UNEVEN = [operation for operation in Operation if operation.has_blocks]
USER = hpccoll.Reduction.from_function(np.maximum, name="maximum")
Floats = NDArray[Any]
Call = Callable[[], object]


def measure(bench: Bench) -> Iterator[Result]:
    """Yield a case per operation and size."""
    op = MPI.Op.Create(_maximum_of_buffers, commute=True)
    for operation in (*UNEVEN, Operation.SCAN, Operation.EXSCAN):
        for nbytes in bench.sizes:
            yield bench.run(make_case(bench, operation, nbytes))
    for nbytes in bench.sizes:
        x, out = make_input(bench.comm.rank, nbytes // 8), np.zeros(nbytes // 8)
        own = partial(bench.own.all_reduce, x, USER, out=out)
        run = bench.own.prepare(Operation.ALL_REDUCE, x, op=USER, out=out)
        yield bench.run(compare("user's maximum", nbytes, partial(bench.comm.Allreduce, x, out, op), own, run, out))
        run.free()
    op.Free()


def make_input(rank: int, count: int) -> Floats:
    """Return small integers, so that every order of reduction gives the same sums."""
    return (np.arange(count) * 3.0 + rank * 7) % 5


def make_case(bench: Bench, operation: Operation, nbytes: int) -> Case:
    """Return the case of an operation on a message of about `nbytes` bytes."""
    comm, n, rank = bench.comm, bench.comm.size, bench.comm.rank
    call = getattr(bench.own, operation.value)
    total = max(nbytes // 8, 1)
    if operation.is_scan:
        x, out = make_input(rank, total), np.zeros(total)
        theirs: Call = partial(comm.Scan if operation is Operation.SCAN else comm.Exscan, x, out)
        prepared = bench.own.prepare(operation, x, out=out)
        return compare(operation.value, nbytes, theirs, partial(call, x, out=out), prepared, out)
    matrix = np.array([[(i + j) % n + 1 for j in range(n)] for i in range(n)])
    parts = matrix if operation is Operation.ALL_TO_ALL else np.arange(1, n + 1)
    ends = parts.cumsum(axis=-1) * total // parts.sum(axis=-1, keepdims=True)
    sizes = np.diff(ends, axis=-1, prepend=0)
    sent = sizes[rank].tolist() if operation is Operation.ALL_TO_ALL else sizes.tolist()
    received = sizes[:, rank].tolist() if operation is Operation.ALL_TO_ALL else sent
    gathers = operation in (Operation.ALL_GATHER, Operation.GATHER)
    x = make_input(rank, sent[rank] if gathers else sum(sent))
    block = not gathers and operation is not Operation.ALL_TO_ALL
    out = np.zeros(received[rank] if block else sum(received))
    how: dict[str, Any] = {"out": out, "counts": sent}
    root = rank == 0
    calls: dict[Operation, Call] = {
        Operation.ALL_GATHER: partial(comm.Allgatherv, x, [out, sent]),
        Operation.GATHER: partial(comm.Gatherv, x, [out, sent] if root else None),
        Operation.SCATTER: partial(comm.Scatterv, [x, sent] if root else None, out),
        Operation.REDUCE_SCATTER: partial(comm.Reduce_scatter, x, out, sent),
        Operation.ALL_TO_ALL: partial(comm.Alltoallv, [x, sent], [out, received]),
    }
    if operation is Operation.ALL_TO_ALL:
        how["out_counts"] = received
    given = None if operation is Operation.SCATTER and not root else x
    prepared = bench.own.prepare(operation, given, **how)
    return compare(f"{operation.value}, counts", nbytes, calls[operation], partial(call, given, **how), prepared, out)


def compare(name: str, nbytes: int, theirs: Call, own: Call, prepared: Call, out: Floats) -> Case:
    """Return the case that times mpi4py's call and hpccoll's calls, and checks their `out` against mpi4py's result."""
    out[:] = -1
    theirs()  # on rank 0, an exscan leaves `out` unchanged
    wanted = out.copy()

    def check(call: Call) -> int:
        out[:] = -1
        call()
        return int(np.count_nonzero(out != wanted))

    sides = [
        Side(LIBRARY, theirs),
        Side("mpi4py again (A/A)", theirs),
        Side("auto, prepared", prepared, (MUST,)),
        Side("auto", own, (CALL,)),
    ]
    return Case(name, nbytes, 50 if nbytes < 2**16 else 5 if nbytes < 2**20 else 1, sides, check=check)


def _maximum_of_buffers(left: Any, out: Any, _: MPI.Datatype) -> None:
    """Compute the elementwise maximum of two buffers of float64 in the second one."""
    own = np.frombuffer(memoryview(out), np.float64)
    np.maximum(np.frombuffer(memoryview(left), np.float64), own, out=own)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,64,1K,16K,256K,1M,16M", measure))
