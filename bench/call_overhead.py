"""What a call of hpccoll costs beside raw mpi4py: all_reduce of 8 bytes, by every way to call it, in batches.

The library's all-reduce stands for the raw call; how much of hpccoll's time is the exchange itself, and how much the
way to it, shows in the prepared call, which does nothing but the exchange. On one rank there is no exchange at all.

    mpirun -n 2 python bench/call_overhead.py --json call_overhead.jsonl
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from compare import Bench, Case, Floats, Side, all_reduce_check
from mpi4py import MPI
from script import Result, main

from hpccoll.communicator import Communicator
from hpccoll.runtime.engine import SIGHTINGS

BATCH = 100


def measure(bench: Bench) -> Iterator[Result]:
    """Yield one case for each size."""
    comm, own = bench.comm, bench.own
    for nbytes in bench.sizes:
        x = np.zeros(max(nbytes // 4, 1), np.float32)
        prepared = own.all_reduce_init(x)
        sides = [
            Side("mpi4py Allreduce, ready spec", partial(comm.Allreduce, MPI.IN_PLACE, [x, MPI.FLOAT], MPI.SUM)),
            Side("mpi4py again (A/A)", partial(comm.Allreduce, MPI.IN_PLACE, [x, MPI.FLOAT], MPI.SUM)),
            Side("mpi4py Allreduce, bare array", partial(comm.Allreduce, MPI.IN_PLACE, x)),
            Side("prepared op()", prepared),
            Side("all_reduce(x), seen before", partial(own.all_reduce, x)),
            Side("all_reduce(x, async_op).wait()", waited(own, x)),
        ]
        yield bench.run(Case("all_reduce", x.nbytes, BATCH, sides, check=all_reduce_check(comm, x)))
        prepared.free()
        yield bench.run(first_sight(bench, x))


def waited(own: Communicator, x: Floats) -> Callable[[], object]:
    """Return an asynchronous all-reduce that is waited for at once."""
    return lambda: own.all_reduce(x, async_op=True).wait()


def first_sight(bench: Bench, x: Floats) -> Case:
    """Race raw calls against hpccoll's on arrays that it has not seen, or has forgotten since."""
    comm, own = bench.comm, bench.own
    pool = [np.zeros_like(x) for _ in range(2 * SIGHTINGS)]

    def each(call: Callable[[Floats], object]) -> Callable[[], object]:
        following = itertools.cycle(pool)
        return lambda: call(next(following))

    sides = [
        Side("mpi4py Allreduce, bare array", each(partial(comm.Allreduce, MPI.IN_PLACE))),
        Side("mpi4py again (A/A)", each(partial(comm.Allreduce, MPI.IN_PLACE))),
        Side("all_reduce(x), never seen", each(own.all_reduce)),
    ]
    return Case("all_reduce, new arrays", x.nbytes, BATCH, sides)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8", measure))
