"""Run programs that use mpi4py over hpccoll and over plain mpi4py, compare their results, and add up their times.

The programs are the three of docs/programs, and programs of heat, pylops-mpi and UltraNest, which are installed by

    pip install --no-deps heat pylops-mpi pylops pyproximal ultranest

Each run is a job of its own. Programs take turns; the time is that of the slowest rank from a barrier after the imports
to the end of the program, and the table has the fastest of `--turns` runs, because other programs of the machine make
runs slower.

    python bench/mpi4py_programs.py --ranks 2 --turns 3
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parents[1] / "docs" / "programs"
LIMIT_S = 300
SIDES = {"mpi4py": [], "over hpccoll": ["-m", "hpccoll.mpi4py"]}
TOLERANCE = 1e-9  # relative; reductions may add in another order


def run_docs_program(name: str, *arguments: str) -> Callable[[], list[float]]:
    """Return a function that runs a program of the docs, and returns the numbers that it prints."""

    def run() -> list[float]:
        printed, sys.argv = io.StringIO(), [name, *arguments]
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(DOCS / f"{name}.py"), run_name="__main__")
        return [float(word) for word in printed.getvalue().replace(",", " ").split() if _is_number(word)]

    return run


def _is_number(word: str) -> bool:
    with contextlib.suppress(ValueError):
        float(word)
        return True
    return False


def prepare_heat_k_means() -> Callable[[], list[float]]:
    """Return a function that clusters four clouds of points by k-means of heat, and returns the cluster centers."""
    ht: Any = importlib.import_module("heat")

    def run() -> list[float]:
        ht.random.seed(5)
        points = ht.utils.data.spherical.create_spherical_dataset(1000, radius=1.0, offset=4.0, random_state=1)
        k_means = ht.cluster.KMeans(n_clusters=4, init="kmeans++", max_iter=30, random_state=1).fit(points)
        centers: list[float] = np.sort(k_means.cluster_centers_.numpy(), axis=0).ravel().tolist()
        return centers

    return run


def prepare_heat_svd() -> Callable[[], list[float]]:
    """Return a function that decomposes a matrix by heat's hierarchical SVD, and returns singular values and error."""
    ht: Any = importlib.import_module("heat")

    def run() -> list[float]:
        rows = ht.arange(200, split=0, dtype=ht.float64).reshape((200, 1))
        matrix = ht.resplit(ht.exp(rows * ht.arange(64, dtype=ht.float64).reshape((1, 64)) / -900), 1)
        _, values, _, error = ht.linalg.hsvd_rank(matrix, 8, compute_sv=True, safetyshift=4)
        return [*values.numpy().tolist(), float(error)]

    return run


def prepare_pylops() -> Callable[[], list[float]]:
    """Return a function that solves a linear least-squares problem by CGLS of pylops-mpi, and returns some unknowns."""
    from mpi4py import MPI

    pylops: Any = importlib.import_module("pylops")
    pylops_mpi: Any = importlib.import_module("pylops_mpi")

    def run() -> list[float]:
        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        block = np.random.default_rng(rank).standard_normal((300, 120))
        operator = pylops_mpi.MPIBlockDiag(ops=[pylops.MatrixMult(block)])
        x = pylops_mpi.DistributedArray(global_shape=size * 120)
        x[:] = np.arange(120) / 120 + rank
        start = pylops_mpi.DistributedArray(global_shape=size * 120)
        start[:] = 0
        solution = pylops_mpi.cgls(operator, operator.matvec(x), x0=start, niter=300, tol=1e-12)[0]
        values: list[float] = solution.asarray()[::17].tolist()
        return values

    return run


def prepare_ultranest() -> Callable[[], list[float]]:
    """Return a function that samples a Gaussian likelihood by UltraNest, and returns the evidence and the means."""
    sampler_class: Any = importlib.import_module("ultranest").ReactiveNestedSampler

    def run() -> list[float]:
        np.random.seed(3)  # noqa: NPY002 - UltraNest draws from NumPy's global generator
        logging.getLogger("ultranest").setLevel(logging.ERROR)

        def likelihood(points: Any) -> Any:
            return -0.5 * (((points - 0.4) / 0.05) ** 2).sum(axis=1)

        sampler = sampler_class(["a", "b"], likelihood, transform=lambda cube: cube, vectorized=True)
        result = sampler.run(min_num_live_points=100, show_status=False, viz_callback=False, max_iters=600)
        return [result["logz"], *result["posterior"]["mean"], float(result["ncall"])]

    return run


PROGRAMS: dict[str, Callable[[], Callable[[], list[float]]]] = {
    "jacobi": lambda: run_docs_program("jacobi", "256", "1000"),
    "conjugate_gradients": lambda: run_docs_program("conjugate_gradients", "2000"),
    "k_means": lambda: run_docs_program("k_means", "20000", "8"),
    "heat k-means": prepare_heat_k_means,
    "heat SVD": prepare_heat_svd,
    "pylops-mpi CGLS": prepare_pylops,
    "UltraNest": prepare_ultranest,
}


def run_program(name: str) -> None:
    """Run a program on this rank; rank 0 prints its results and time as JSON."""
    from mpi4py import MPI

    run = PROGRAMS[name]()
    world = MPI.Intracomm(MPI.COMM_WORLD)
    world.Barrier()
    start = time.perf_counter()
    results = run()
    seconds = world.allreduce(time.perf_counter() - start, MPI.MAX)
    if world.rank == 0:
        print("RESULT", json.dumps([seconds, results]), flush=True)


def start_job(name: str, side: str, ranks: int) -> tuple[float, list[float]]:
    """Run a program in a job of its own; return its seconds and its results."""
    mpirun = str(Path(sys.executable).parent / "mpirun")
    words = [mpirun, "-n", str(ranks), sys.executable, *SIDES[side], __file__, "--run", name]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | threads)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise SystemExit(f"{name} {side}: {done.stderr[-2000:]}")
    seconds, results = json.loads(lines[0].removeprefix("RESULT"))
    return seconds, results


def main() -> int:
    """Print a table of all programs; return 1 if the results of a program differ between mpi4py and hpccoll."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--run", choices=PROGRAMS)
    parser.add_argument("names", nargs="*", metavar="PROGRAM")
    arguments = parser.parse_args()
    if arguments.run:
        run_program(arguments.run)
        return 0
    wrong, sums = 0, dict.fromkeys(SIDES, 0.0)
    print("| program | mpi4py (ms) | over hpccoll (ms) | ratio | results |\n|---|---|---|---|---|")
    for name in arguments.names or PROGRAMS:
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        results = {}
        for _ in range(arguments.turns):
            for side in SIDES:
                seconds, results[side] = start_job(name, side, arguments.ranks)
                times[side].append(seconds * 1e3)
        plain, ours = (min(times[side]) for side in SIDES)
        first, second = (np.array(results[side]) for side in SIDES)
        is_equal = first.shape == second.shape and first.size > 0 and np.allclose(first, second, TOLERANCE, 0)
        wrong += not is_equal
        sums["mpi4py"], sums["over hpccoll"] = sums["mpi4py"] + plain, sums["over hpccoll"] + ours
        text = ("equal" if (first == second).all() else "equal to 1e-9") if is_equal else "**differ**"
        print(f"| {name} | {plain:,.1f} | {ours:,.1f} | {plain / ours:.2f}x | {text} |", flush=True)
    plain, ours = sums.values()
    print(f"| sum | {plain:,.1f} | {ours:,.1f} | {plain / ours:.2f}x | |")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
