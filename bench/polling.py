"""Compare waits in shared memory that let MPI advance with waits that never poll MPI.

All sides run the same prepared all-reduce on symmetric buffers. The side `never polls MPI` replaces the poll of MPI by
a function that does nothing.

    mpirun -n 2 python bench/polling.py --json polling.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from compare import Bench, Case, Must, Side, all_reduce_check
from script import Result, main

from hpccoll.runtime.progress import get_progress

ALGORITHMS = ("shared_one_shot", "shared_two_shot")
WITHOUT = "never polls MPI"


def measure(bench: Bench) -> Iterator[Result]:
    """Yield one case per size and algorithm."""
    progress = get_progress()
    poll = progress.poll_mpi

    def with_poll(run: Callable[[], object], poll_mpi: Callable[[], object]) -> Callable[[], object]:
        """Return a call of `run` during which waits poll MPI by `poll_mpi`."""

        def call() -> None:
            progress.poll_mpi = poll_mpi
            run()

        return call

    for nbytes in bench.sizes:
        x = bench.own.empty(max(nbytes // 4, 1), "float32")
        x[:] = 0
        for algorithm in ALGORITHMS:
            run = bench.own.all_reduce_init(x, algorithm=algorithm)
            sides = [
                Side(WITHOUT, with_poll(run, bool)),
                Side(f"{WITHOUT}, again (A/A)", with_poll(run, bool)),
                Side("polls MPI", with_poll(run, poll), (Must("no slower", WITHOUT),)),
            ]
            batch = 100 if nbytes < 2**14 else 20
            yield bench.run(Case(algorithm, nbytes, batch, sides, check=all_reduce_check(bench.comm, x)))
            run.free()
        bench.own.free(x)
    progress.poll_mpi = poll


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,64K", measure))
