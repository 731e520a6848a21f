"""Compare replays of recorded jobs, and predicted savings of other algorithms, with measured times.

Each job is a program that `hpccoll profile` records. The replay simulates it twice: with the recorded transfers, and
with those of the network that is fitted to the recording.

    python bench/profile_replay.py --ranks 4 --jobs 10 [PROGRAM...]
    python bench/profile_replay.py --ranks 4 --jobs 10 --lab 1ms [PROGRAM...]
    python bench/profile_replay.py --ranks 4 --jobs 5 --lab 1ms --algorithms

With `--lab TIME`, each rank has a node of its own in a lab (`hpccoll lab`), whose links add TIME and carry 400 Mbit/s.
With `--algorithms`, a program of all_reduces runs with each of several algorithms, in turns. The table has the saving
that the recording with one algorithm predicts for each other algorithm, and the measured saving: first without, then
with a tuning table that `hpccoll tune` measures between the runs. A prediction is right if it is within 30 % of the
measured saving; only savings of more than 10 % of the run time count.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from hpccoll.lab import ClusterSpec, Lab, parse_rate
from hpccoll.lab.cluster_spec import parse_latency

ROOT = Path(__file__).resolve().parents[1]
BIN, LIMIT_S, RATE = Path(sys.executable).parent, 200, "400M"
THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DOCS: Final = {
    "jacobi": ("256", "400"),
    "conjugate_gradients": ("800",),
    "k_means": ("8000", "6"),
}  # the arguments of programs in docs/programs
ALGORITHMS: Final = ("ring", "recursive_doubling", "rabenseifner")
SIZES: Final = (8, 2**18)
LAB_LOOP: Final = (100, 1e-3)  # the calls of a program of all_reduces, and the seconds of computing before each
HOST_LOOP: Final = (1000, 1e-4)
LEAST_SAVING, TOLERANCE = 0.1, 0.3  # of the run time, from which a saving counts; of the saving, of a right prediction
PORT: Final = "29517"
RANK_VARIABLES: Final = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
SIZE_VARIABLES: Final = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def run_ddp() -> None:
    """Train with DistributedDataParallel."""
    import torch

    _train(lambda model: torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.25))


def run_fsdp() -> None:
    """Train with fully_shard."""
    from torch.distributed.fsdp import fully_shard

    def shard(model: Any) -> Any:
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)

    _train(shard)


def _train(distribute: Callable[[Any], Any]) -> None:
    """Train a model for 20 steps."""
    import torch

    rank, size = (
        next(os.environ[name] for name in names if name in os.environ) for names in (RANK_VARIABLES, SIZE_VARIABLES)
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=int(rank), world_size=int(size))
    torch.manual_seed(0)
    model = distribute(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(20):
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
    gc.collect()  # models in cycles keep the threads of Gloo
    torch.distributed.destroy_process_group()


def run_pipeline() -> None:
    """Pass micro-batches forward and backward through stages, one per rank."""
    from mpi4py import MPI

    comm, weights = MPI.COMM_WORLD, np.eye(128)
    batch, rank, last = np.ones((64, 128)), comm.rank, comm.size - 1
    for _ in range(20):
        for micro in range(4):
            if rank:
                comm.Recv(batch, rank - 1, micro)
            result = batch @ weights @ weights
            if rank < last:
                comm.Send(result, rank + 1, micro)
        for micro in range(4):
            if rank < last:
                comm.Recv(batch, rank + 1, micro)
            result = batch @ weights @ weights @ weights
            if rank:
                comm.Send(result, rank - 1, micro)


def run_reductions(nbytes: int, calls: int, compute_s: float) -> None:
    """Run all_reduces over hpccoll, and print the seconds from a barrier to a barrier.

    Args:
        nbytes: the bytes of each vector of float64.
        calls: the number of all_reduces; three more come before the first barrier.
        compute_s: the seconds for which each rank sleeps before each call.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    source, result = np.ones(nbytes // 8), np.empty(nbytes // 8)
    for _ in range(3):
        comm.Allreduce(source, result)
    comm.Barrier()
    begin_s = time.perf_counter()
    for _ in range(calls):
        time.sleep(compute_s)
        comm.Allreduce(source, result)
    comm.Barrier()
    if comm.rank == 0:
        print("seconds", time.perf_counter() - begin_s, flush=True)


RUNS: Final[dict[str, Callable[[], None]]] = {"ddp": run_ddp, "fsdp": run_fsdp, "pipeline": run_pipeline}


class Cluster:
    """Starts jobs on this host or in a lab.

    Args:
        ranks: the number of ranks of each job.
        lab: a lab with a node per rank, or None.
    """

    def __init__(self, ranks: int, lab: Lab | None) -> None:
        self._ranks, self._lab, self.has_lab = ranks, lab, lab is not None

    def run(self, words: Sequence[str], **variables: str) -> str:
        """Run a job; return its standard output."""
        words = [str(BIN / "mpirun"), "-n", str(self._ranks), *words]
        master = {"MASTER_ADDR": "10.77.0.1" if self._lab else "127.0.0.1", "MASTER_PORT": PORT}
        variables = THREADS | master | variables
        if self._lab is None:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                env=os.environ | variables | {"GLOO_SOCKET_IFNAME": "lo"},
            )  # fmt: skip
        else:
            words = ["salloc", "--quiet", f"--nodes={self._ranks}", "--ntasks-per-node=1", "--", *words]
            done = self._lab.run(words, timeout_s=LIMIT_S, env=variables)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout

    def record(self, directory: Path, words: Sequence[str], **variables: str) -> str:
        """Record a job; return its standard output."""
        return self.run([str(BIN / "hpccoll"), "profile", "-o", str(directory), *words], **variables)


def read_records(directory: Path, *changes: str, tuning: str = "off") -> list[dict[str, Any]]:
    """Return the records of a recording, with a prediction for each change.

    Args:
        directory: the recording.
        changes: the changes, as `--what-if` takes them.
        tuning: the path of a tuning table, or `off`.
    """
    words = [str(BIN / "hpccoll"), "profile", str(directory), "--json", "-"]
    words += [word for change in changes for word in ("--what-if", change)]
    environment = os.environ | {"HPCCOLL_TUNING": tuning}
    printed = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment).stdout
    return [json.loads(line) for line in printed.splitlines()]


def compare_replays(cluster: Cluster, programs: Sequence[str], jobs: int, directory: Path) -> None:
    """Print the recorded times and the errors of both replays, as medians over jobs."""
    print("| program | calls | recorded (s) | replay | replay on the fitted network |\n|---|---|---|---|---|")
    rows: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in programs}
    for job in range(jobs):
        for name in programs:
            words = [str(ROOT / "docs" / "programs" / f"{name}.py"), *DOCS[name]] if name in DOCS else None
            recording = directory / f"{name}-{job}"
            cluster.record(recording, words or [__file__, "--run", name])
            records = read_records(recording, "bandwidth=1", "balance")
            calls = next(record["calls"] for record in records if record["kind"] == "profile")
            fitted, recorded = (record for record in records if record["kind"] == "profile_prediction")
            rows[name].append((recorded["recorded_s"], recorded["replay_error"], fitted["replay_error"], calls))
    for name, values in rows.items():
        seconds, exact, fitted_error, calls = (median(column) for column in zip(*values, strict=True))
        print(f"| {name} | {calls:,.0f} | {seconds:.3f} | {exact:.1%} | {fitted_error:.1%} |", flush=True)
    every = [value for values in rows.values() for value in values]
    exact, fitted_error = (median(value[column] for value in every) for column in (1, 2))
    print(f"| median of {len(every)} jobs | | | {exact:.1%} | {fitted_error:.1%} |")


def record_algorithms(cluster: Cluster, nbytes: int, jobs: int, directory: Path) -> dict[str, list[float]]:
    """Record a program of all_reduces with each algorithm in turns, and tune once; return the seconds by algorithm.

    The recordings are in `directory`, as ALGORITHM-BYTES-JOB, and the tuning table as BYTES.json.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    calls, compute_s = LAB_LOOP if cluster.has_lab else HOST_LOOP
    words = [__file__, "--reductions", str(nbytes), str(calls), str(compute_s)]
    for job in range(jobs):
        if job == jobs // 2:
            size = ["-b", str(nbytes), "-e", str(nbytes)]
            tune = [str(BIN / "hpccoll"), "tune", "all_reduce", *size, "--buffer", "host"]
            cluster.run([*tune, "-o", str(directory / f"{nbytes}.json")])
        for name in ALGORITHMS:
            variables = {"HPCCOLL_MPI4PY_ALGORITHMS": f"all_reduce={name}", "HPCCOLL_MPI4PY_AFTER": "0"}
            printed = cluster.record(directory / f"{name}-{nbytes}-{job}", ["--drop-in", *words], **variables)
            seconds[name].append(float(printed.split("seconds")[1].split()[0]))
    return seconds


def predict_savings(recording: Path, others: Sequence[str], tuning: str) -> dict[str, float]:
    """Return the seconds that a recorded job is predicted to save with each other algorithm; NaN if not known.

    Args:
        recording: the recording of the job.
        others: the names of the other algorithms.
        tuning: the path of a tuning table, or `off`.
    """
    records = read_records(recording, *(f"algorithm=all_reduce/{name}" for name in others), tuning=tuning)
    predictions = [record for record in records if record["kind"] == "profile_prediction"]
    return {
        name: math.nan if each["predicted_s"] is None else each["recorded_s"] - each["predicted_s"]
        for name, each in zip(others, predictions, strict=True)
    }


def compare_algorithms(cluster: Cluster, jobs: int, directory: Path) -> None:
    """Print the measured and the predicted saving of each change of the algorithm.

    The saving is the difference of the shortest times of the jobs, because other programs of the machine only make
    times longer. It is predicted from the recording of the shortest job.
    """
    print("| bytes | recorded | changed to | saved | by simulation | by tuning table |\n|---|---|---|---|---|---|")
    rights: dict[str, list[bool]] = {"simulation": [], "tuning table": []}
    for nbytes in SIZES:
        seconds = record_algorithms(cluster, nbytes, jobs, directory)
        shortest = {name: min(each) for name, each in seconds.items()}
        tables = {"simulation": "off", "tuning table": str(directory / f"{nbytes}.json")}
        for name in ALGORITHMS:
            recording = directory / f"{name}-{nbytes}-{seconds[name].index(shortest[name])}"
            others = [other for other in ALGORITHMS if other != name]
            predicted = {source: predict_savings(recording, others, table) for source, table in tables.items()}
            for other in others:
                saved_s, cells = shortest[name] - shortest[other], []
                for source, savings in predicted.items():
                    cells.append("not known" if math.isnan(savings[other]) else f"{savings[other]:.3f} s")
                    if saved_s > LEAST_SAVING * shortest[name] and not math.isnan(savings[other]):
                        is_right = abs(savings[other] / saved_s - 1) <= TOLERANCE
                        rights[source].append(is_right)
                        cells[-1] += f" ({'right' if is_right else 'wrong'})"
                row = f"| {nbytes} | {name} {shortest[name]:.3f} s | {other} {shortest[other]:.3f} s | {saved_s:.3f} s"
                print(f"{row} | {' | '.join(cells)} |", flush=True)
    for source, values in rights.items():
        print(f"{source}: {sum(values)} of {len(values)} predictions of savings above 10 % are right")


def main() -> int:
    """Run one rank of a program, or record jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--lab", metavar="TIME")
    parser.add_argument("--algorithms", action="store_true")
    parser.add_argument("--run", choices=RUNS, help="run one rank of a program")
    parser.add_argument(
        "--reductions", nargs=3, metavar=("BYTES", "CALLS", "SECONDS"), help="run one rank of a program of all_reduces"
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=[*DOCS, *RUNS])
    arguments = parser.parse_args()
    if arguments.run:
        RUNS[arguments.run]()
    elif arguments.reductions:
        nbytes, calls, compute_s = arguments.reductions
        run_reductions(int(nbytes), int(calls), float(compute_s))
    else:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            lab = None
            if arguments.lab:
                shares = (str(ROOT), sys.prefix, str(directory))
                spec = ClusterSpec(arguments.ranks, 1, parse_rate(RATE), parse_latency(arguments.lab), shares)
                lab = stack.enter_context(Lab(spec))
            cluster = Cluster(arguments.ranks, lab)
            if arguments.algorithms:
                compare_algorithms(cluster, arguments.jobs, directory)
            else:
                compare_replays(cluster, arguments.programs, arguments.jobs, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
