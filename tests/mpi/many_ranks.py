"""Every algorithm of every operation, with results computed from the known inputs.

For many ranks on a node, where the programs of `random_programs` would take minutes:

    mpirun -n 64 python -m tests.mpi.many_ranks --all
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path

from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import list_algorithm_names
from hpccoll.plan import Operation
from tests.mpi.random_programs import Call, RandomProgram

COUNT = 61


class EveryAlgorithm(RandomProgram):
    """A program of one group that calls every algorithm of every operation."""

    def run_all(self, symmetric: int, *, asynchronous: bool) -> None:
        """Call every algorithm, then each operation without blocking, or every algorithm if `asynchronous` is true.

        `symmetric` is the number of the symmetric buffer to use, or -1 for other arrays.
        """
        for operation in Operation:
            names = ("auto", "mpi", *list_algorithm_names(operation))
            buffer = -1 if operation is Operation.BARRIER else symmetric
            for blocking, algorithms in ((True, names), (False, names if asynchronous else names[-1:])):
                for algorithm in algorithms:
                    root = self.number % self.world.size
                    self._call(
                        Call(self.number, 0, operation, "int64", COUNT, "sum", root, algorithm, False, blocking, buffer)
                    )
                    self.number += 1
            self._wait_for(self.pending[:])


def count_mappings() -> int:
    """Return the number of mapped segments of shared memory."""
    with Path("/proc/self/maps").open() as lines:
        return sum(("memfd:hpccoll" in line or "/hpccoll-" in line) and "-recorder" not in line for line in lines)


def main() -> None:
    """Run the program with ordinary and symmetric buffers, and print the number of operations and the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump-after", type=float, default=0, help="seconds after which to print each rank's stack")
    parser.add_argument("--all", action="store_true", help="asynchronous calls and symmetric buffers for all")
    options = parser.parse_args()
    if options.dump_after:
        faulthandler.dump_traceback_later(options.dump_after)
    began = time.time()
    try:
        with hpccoll.Communicator() as world:
            made = time.time()
            program = EveryAlgorithm(world, 1, groups=0)
            for symmetric in (-1, 0) if options.all else (-1,):
                program.run_all(symmetric, asynchronous=options.all)
            mappings = count_mappings()
            program.close()
    except BaseException as error:  # noqa: BLE001 - any error ends all ranks
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    if MPI.COMM_WORLD.rank == 0:
        print(
            f"{program.number} operations on {MPI.COMM_WORLD.size} ranks: none wrong; {mappings} mappings of segments; "
            f"Communicator {made - began:.1f} s, all {time.time() - began:.1f} s"
        )


if __name__ == "__main__":
    main()
