"""Drawn calls with counts, and scans: results equal to replay of the same plan, and to mpi4py's own collectives.

Counts (many are zero), roots, dtypes, reductions, algorithms and ways to call are drawn from a seed:

    mpirun -n 8 python -m tests.mpi.uneven_programs --turns 100 --seed 1
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import traceback

from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import Algorithm
from hpccoll.plan import Operation
from tests.mpi.calls import Call, check
from tests.mpi.cases import NAMES, PATHS, Case, bits, legal
from tests.mpi.test_uneven import REDUCTIONS, SCANS, SIZES, VARIANTS, call_mpi4py

OPERATIONS = [each for each in Operation if each.has_blocks or each.is_scan]


def draw_case(rng: random.Random, algorithm: Algorithm, n: int, turn: int) -> Case:
    """Draw a case of an algorithm; counts only if its operation has blocks."""
    operation = algorithm.operation
    op = rng.choice(REDUCTIONS) if operation.reduces else "none"
    dtype = rng.choice([name for name in NAMES if legal(operation, name, op)])
    length = n * n if operation is Operation.ALL_TO_ALL else n
    counts = tuple(rng.choice(SIZES) for _ in range(length))
    place = rng.randrange(n), rng.random() < 0.5, rng.choice(PATHS)
    return Case(algorithm, dtype, op, counts[0], *place, seed=turn, counts=counts if operation.has_blocks else None)


def compare_with_mpi4py(own: hpccoll.Communicator, comm: MPI.Intracomm, case: Case) -> None:
    """Require that `auto`, the MPI library and the case's algorithm give mpi4py's result for integers."""
    op = "sum" if case.operation.reduces else "none"
    place = case.root, case.in_place, case.path
    case = Case(case.algorithm, "int64", op, case.count, *place, seed=case.seed, counts=case.counts)
    wanted = call_mpi4py(comm, case)
    for algorithm in ("auto", "mpi", case.algorithm):
        call = Call(own, case)
        call.algorithm = algorithm
        for found in call.results():
            assert (found is None) == (wanted is None), (case, algorithm)
            assert found is None or wanted is None or bits(found) == bits(wanted), (case, algorithm)


def main() -> None:
    """Run the drawn calls and print their number; any failure aborts the job with the case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3, help="calls of each operation; default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn calls")
    parser.add_argument("--dump-after", type=float, default=0, help="seconds after which to print each rank's stack")
    options = parser.parse_args()
    if options.dump_after:
        faulthandler.dump_traceback_later(options.dump_after)
    rng, comm = random.Random(options.seed), MPI.COMM_WORLD  # the same on every rank, not a secret
    known, turn = list((VARIANTS | SCANS).values()), 0
    try:
        with hpccoll.Communicator(comm) as own:
            for turn in range(options.turns):
                for operation in OPERATIONS:
                    algorithm = rng.choice([each for each in known if each.operation is operation])
                    case = draw_case(rng, algorithm, comm.size, turn)
                    check(own, comm, [case])
                    compare_with_mpi4py(own, comm, case)
    except BaseException:  # noqa: BLE001 - any error ends all ranks
        sys.stderr.write(f"rank {comm.rank}, seed {options.seed}, turn {turn}: {traceback.format_exc()}\n")
        sys.stderr.flush()
        comm.Abort(1)
    if comm.rank == 0:
        print(f"{options.turns * len(OPERATIONS)} drawn calls on {comm.size} ranks: none wrong")


if __name__ == "__main__":
    main()
