r"""Compare the default of Open MPI or MPICH with the rules that `hpccoll tune --export` wrote, in jobs that take turns.

A job is a plain program of mpi4py. Jobs with the default and jobs with the rules alternate, in a random order per pair.
A sample is the mean time of a call in a loop, as the maximum over the ranks. A ratio above 1 means that the rules are
faster. The last record has the geometric means of the ratios over all sizes, per operation and over all operations.

    mpirun -n 4 hpccoll tune --export openmpi -o rules.conf
    python bench/library_rules.py openmpi rules.conf --launcher "mpirun -n 4" --json library_rules.jsonl
    hpccoll lab run -- python bench/library_rules.py mpich rules.json \
        --launcher "srun --mpi=pmi2 -N4 --ntasks-per-node=2"
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from best_peers import OPEN_MPI_AS_ROOT, make_library_call

from hpccoll.library_rules import mpich, open_mpi
from hpccoll.measure.results.result_file import RecordWriter
from hpccoll.plan import Operation
from hpccoll.statistics import ratio_of_medians
from hpccoll.units import format_size, parse_size

OPERATIONS = "all_reduce,broadcast,reduce,all_gather,reduce_scatter,all_to_all"
BATCHES, MOST_BATCH, BATCH_S = 5, 1000, 0.1
JOB_TIMEOUT_S = 300
Samples = dict[tuple[str, int], list[float]]  # microseconds by operation and bytes


def main() -> int:
    """Run jobs in turns, print a table and write the records; or run as a rank of a job."""
    options = parse_options()
    if options.rank:
        measure_calls(options)
        return 0
    variables = list_variables(options.library, Path(options.rules))
    samples: dict[str, Samples] = {"default": defaultdict(list), "rules": defaultdict(list)}
    order = random.Random(0)  # noqa: S311 - the same order in every run, not a secret
    for _ in range(options.jobs):
        for side in order.sample(list(samples), len(samples)):
            for key, values in run_job(options, variables if side == "rules" else {}).items():
                samples[side][key] += values
    with RecordWriter(options.json) as writer:
        for record in make_records(options, samples["default"], samples["rules"]):
            writer.write(record)
    return 0


def parse_options() -> argparse.Namespace:
    """Parse the command line; `rank` is True in a rank of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["openmpi", "mpich"])
    parser.add_argument("rules", help="the file that hpccoll tune --export wrote")
    parser.add_argument("--launcher", default="mpirun -n 4", help="the words before python; default %(default)s")
    parser.add_argument("--operations", default=OPERATIONS, help="joined by commas; default %(default)s")
    parser.add_argument("--sizes", default="8,128,2K,32K,512K,8M,16M", help="default %(default)s")
    parser.add_argument("--jobs", type=int, default=5, help="jobs per side; default %(default)s")
    parser.add_argument("--thread-level", default="funneled", help="of MPI; default %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write records as JSON Lines")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def list_variables(library: str, rules: Path) -> dict[str, str]:
    """Return the variables with which the library reads the rules."""
    if library == "mpich":
        return mpich.list_variables(rules)
    return open_mpi.list_variables(rules, has_han_file=open_mpi.name_han_file(rules).exists())


def run_job(options: argparse.Namespace, variables: dict[str, str]) -> Samples:
    """Run a job with environment variables, and return its samples; raise RuntimeError if it fails."""
    binaries = Path(sys.executable).parent
    words = [sys.executable, __file__, options.library, options.rules, "--rank", "--thread-level", options.thread_level]
    words += ["--sizes", options.sizes, "--operations", options.operations]
    defaults = OPEN_MPI_AS_ROOT | {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
    environment = defaults | os.environ | variables | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*shlex.split(options.launcher), *words],
        check=False, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, env=environment,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        raise RuntimeError(f"the job failed with status {done.returncode}: {done.stderr[-500:]}")
    return {(operation, nbytes): values for operation, nbytes, values in map(json.loads, lines)}


def measure_calls(options: argparse.Namespace) -> None:
    """Time all calls on this rank; rank 0 prints a JSON list per operation and size."""
    import mpi4py

    mpi4py.rc.thread_level = options.thread_level
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    make_call = make_library_call(comm)
    for operation in options.operations.split(","):
        for size in options.sizes.split(","):
            nbytes = parse_size(size)
            blocks = comm.size if Operation(operation).has_blocks else 1
            x = np.zeros(max(nbytes // 4 // blocks, 1) * blocks, np.float32)
            call = make_call(operation, x, np.zeros_like(x))
            if call is None:
                raise RuntimeError(f"best_peers.py has no call of {operation}")
            values = time_calls(comm, call)
            if comm.rank == 0:
                print(json.dumps([operation, nbytes, values]), flush=True)


def time_calls(comm: Any, call: Any) -> list[float]:
    """Return the microseconds of a call in each batch, as the maximum over the ranks."""
    call()
    pilot = comm.allreduce(_time_batch(comm, call, 1)) / comm.size
    batch = int(min(max(BATCH_S / max(pilot, 1e-7), 1), MOST_BATCH))
    samples = [_time_batch(comm, call, batch) for _ in range(BATCHES)]
    return [round(1e6 * max(values), 3) for values in zip(*comm.allgather(samples), strict=True)]


def _time_batch(comm: Any, call: Any, batch: int) -> float:
    """Return the mean seconds of `batch` calls after a barrier."""
    comm.Barrier()
    begin = perf_counter()
    for _ in repeat(None, batch):
        call()
    return (perf_counter() - begin) / batch


def make_records(options: argparse.Namespace, default: Samples, rules: Samples) -> Iterator[dict[str, Any]]:
    """Print a row per operation and size, and yield its record; then print and yield the geometric means."""
    ratios: dict[str, list[float]] = defaultdict(list)
    common = {"schema": "hpccoll/1", "library": options.library, "launcher": options.launcher}
    common |= {"thread_level": options.thread_level, "rules": Path(options.rules).name}
    for (operation, nbytes), values in default.items():
        ratio = ratio_of_medians(values, rules[operation, nbytes])
        medians = [float(np.median(values)), float(np.median(rules[operation, nbytes]))]
        ratios[operation].append(ratio.value)
        print(
            f"{operation:<15} {format_size(nbytes):>8} {medians[0]:>12.2f} us {medians[1]:>12.2f} us "
            f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]",
            flush=True,
        )
        yield common | {
            "kind": "library_rules", "op": operation, "nbytes": nbytes, "jobs": options.jobs,
            "default_us": round(medians[0], 3), "rules_us": round(medians[1], 3),
            "ratio": [round(each, 4) for each in (ratio.low, ratio.value, ratio.high)],
        }  # fmt: skip
    means = {operation: compute_geometric_mean(values) for operation, values in ratios.items()}
    means["all"] = compute_geometric_mean([each for values in ratios.values() for each in values])
    print("geometric means: " + ", ".join(f"{name} {value:.3f}x" for name, value in means.items()))
    yield common | {"kind": "library_rules_means", "means": {name: round(each, 4) for name, each in means.items()}}


def compute_geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios."""
    return float(np.exp(np.mean(np.log(values))))


if __name__ == "__main__":
    sys.exit(main())
