"""Compare replays of recorded jobs, and predicted savings of other algorithms, with measured times.

Each job is a program that `hpccoll profile` records. The replay simulates it twice: with the recorded transfers, and
with those of the network that is fitted to the recording.

    python bench/profile_replay.py --ranks 4 --jobs 10 [PROGRAM...]
    python bench/profile_replay.py --ranks 4 --jobs 10 --lab 1ms [PROGRAM...]
    python bench/profile_replay.py --ranks 4 --jobs 5 --lab 1ms --algorithms

With `--lab TIME`, each rank has a node of its own in a lab (`hpccoll lab`), whose links add TIME and carry 400 Mbit/s.
With `--algorithms`, a program of all_reduces runs with several algorithms in turns. Then it is recorded with each of
them, `hpccoll tune` measures them, and `hpccoll replay --save` runs each recording with all of them. The table has the
share of the run time that another algorithm saves, as measured (the median of the jobs) and as predicted from the
recording without a tuning table, with the tuning table, and with the times of the replay. A prediction is right if it
is within 30 % of the measured saving; only savings of more than 10 % of the run time count.
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
LAB_LOOP: Final = (10, 10, 1e-3)  # turns of a program of all_reduces, calls of a turn, seconds of computing before each
HOST_LOOP: Final = (20, 100, 1e-5)
TUNING_BUDGET_S: Final = "2"  # of each algorithm
REPLAYS: Final = "12"  # runs of each algorithm
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


def start_torch() -> None:
    """Start torch.distributed over Gloo on the ranks of `mpirun`, with one thread and a fixed seed. Collective."""
    import torch

    rank, size = (
        next(int(os.environ[name]) for name in names if name in os.environ)
        for names in (RANK_VARIABLES, SIZE_VARIABLES)
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)


def _train(distribute: Callable[[Any], Any]) -> None:
    """Train a model for 20 steps."""
    import torch

    start_torch()
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


def run_reductions(nbytes: int, turns: int, calls: int, compute_s: float) -> None:
    """Run all_reduces over hpccoll with each of ALGORITHMS in turns, or with one algorithm if there are no turns.

    Print, for each algorithm, the median seconds of a turn, from a barrier to a barrier.

    Args:
        nbytes: the bytes of each vector of float64.
        turns: the number of turns; 0 for a single one with the algorithm of HPCCOLL_MPI4PY_ALGORITHMS.
        calls: the number of all_reduces of a turn.
        compute_s: the seconds for which each rank sleeps before each call.
    """
    from mpi4py import MPI

    from hpccoll.mpi4py import configure

    comm, source, result = MPI.COMM_WORLD, np.ones(nbytes // 8), np.empty(nbytes // 8)
    seconds: dict[str, list[float]] = {name: [] for name in (ALGORITHMS if turns else ("",))}
    for _ in range(turns + 1):  # the first turn is a warm-up, unless it is the only one
        for name, values in seconds.items():
            if name:
                configure("all_reduce", name)
                comm.Allreduce(source, result)  # prepares the plan
            comm.Barrier()
            begin_s = time.perf_counter()
            for _ in range(calls):
                time.sleep(compute_s)
                comm.Allreduce(source, result)
            comm.Barrier()
            values.append(time.perf_counter() - begin_s)
    if comm.rank == 0:
        for name, values in seconds.items():
            print("seconds", name, median(values[1:] or values), flush=True)


RUNS: Final[dict[str, Callable[[], None]]] = {"ddp": run_ddp, "fsdp": run_fsdp, "pipeline": run_pipeline}


class Cluster:
    """Starts jobs on this host or in a lab.

    Args:
        ranks: the usual number of ranks of a job.
        lab: a lab with a node per rank, or None.
    """

    def __init__(self, ranks: int, lab: Lab | None) -> None:
        self._ranks, self._lab, self.has_lab = ranks, lab, lab is not None

    def run(self, words: Sequence[str], *, ranks: int = 0, **variables: str) -> str:
        """Run a job on `ranks` ranks (0: the usual number); return its standard output."""
        ranks = ranks or self._ranks
        words = [str(BIN / "mpirun"), "-n", str(ranks), *words]
        master = {"MASTER_ADDR": "10.77.0.1" if self._lab else "127.0.0.1", "MASTER_PORT": PORT}
        variables = THREADS | master | variables
        if self._lab is None:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                env=os.environ | variables | {"GLOO_SOCKET_IFNAME": "lo"},
            )  # fmt: skip
        else:
            words = ["salloc", "--quiet", f"--nodes={ranks}", "--ntasks-per-node=1", "--", *words]
            done = self._lab.run(words, timeout_s=LIMIT_S, env=variables)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout

    def record(self, directory: Path, words: Sequence[str], *, ranks: int = 0, **variables: str) -> str:
        """Record a job on `ranks` ranks (0: the usual number); return its standard output."""
        return self.run(
            [str(BIN / "hpccoll"), "profile", "--overwrite", "-o", str(directory), *words], ranks=ranks, **variables
        )


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


def measure_algorithms(cluster: Cluster, nbytes: int) -> dict[str, float]:
    """Return the seconds of a turn of a program of all_reduces with each algorithm, measured in turns in one job."""
    turns, calls, compute_s = LAB_LOOP if cluster.has_lab else HOST_LOOP
    words = [__file__, "--reductions", *map(str, (nbytes, turns, calls, compute_s))]
    printed = cluster.run([sys.executable, "-m", "hpccoll.mpi4py", *words], HPCCOLL_MPI4PY_AFTER="0")
    rows = [line.split() for line in printed.splitlines() if line.startswith("seconds")]
    return {name: float(seconds) for _, name, seconds in rows}


def record_algorithms(cluster: Cluster, nbytes: int, directory: Path) -> None:
    """Record the program with each algorithm as `directory`/ALGORITHM-BYTES, and write a tuning table, BYTES.json."""
    turns, calls, compute_s = LAB_LOOP if cluster.has_lab else HOST_LOOP
    words = ["--drop-in", __file__, "--reductions", *map(str, (nbytes, 0, turns * calls, compute_s))]
    for name in ALGORITHMS:
        chosen, recording = f"all_reduce={name}", directory / f"{name}-{nbytes}"
        cluster.record(recording, words, HPCCOLL_MPI4PY_ALGORITHMS=chosen, HPCCOLL_MPI4PY_AFTER="0")
    size = ["-b", str(nbytes), "-e", str(nbytes), "--buffer", "host", "--budget", TUNING_BUDGET_S]
    cluster.run([str(BIN / "hpccoll"), "tune", "all_reduce", *size, "-o", str(directory / f"{nbytes}.json")])


def predict_savings(recording: Path, others: Sequence[str], tuning: str) -> dict[str, float]:
    """Return the share of its time that a recorded job is predicted to save with other algorithms; NaN if not known.

    Args:
        recording: the recording of the job.
        others: the names of the other algorithms.
        tuning: the path of a tuning table, or `off`.
    """
    records = read_records(recording, *(f"algorithm=all_reduce/{name}" for name in others), tuning=tuning)
    predictions = [record for record in records if record["kind"] == "profile_prediction"]
    savings = (math.nan if each["saving"] is None else each["saving"] for each in predictions)
    return dict(zip(others, savings, strict=True))


def compare_algorithms(cluster: Cluster, jobs: int, directory: Path) -> None:
    """Print the measured and the predicted saving of each change of the algorithm, as shares of the run time."""
    print("| bytes | recorded | changed to | saved | by simulation | by tuning table | by replay |")
    print("|---|---|---|---|---|---|---|")
    rights: dict[str, list[bool]] = {"simulation": [], "tuning table": [], "replay": []}
    for nbytes in SIZES:
        measured = [measure_algorithms(cluster, nbytes) for _ in range(jobs)]
        record_algorithms(cluster, nbytes, directory)
        seconds = {name: median(each[name] for each in measured) for name in ALGORITHMS}
        tables = {"simulation": "off", "tuning table": str(directory / f"{nbytes}.json")}
        for name in ALGORITHMS:
            others = [other for other in ALGORITHMS if other != name]
            recording = directory / f"{name}-{nbytes}"
            predicted = {source: predict_savings(recording, others, table) for source, table in tables.items()}
            engines = ",".join(f"all_reduce/{each}" for each in ALGORITHMS)
            cluster.run([str(BIN / "hpccoll"), "replay", str(recording), "--engine", engines, "-n", REPLAYS, "--save"])
            predicted["replay"] = predict_savings(recording, others, "off")
            for other in others:
                saved, cells = 1 - seconds[other] / seconds[name], []
                for source, savings in predicted.items():
                    cells.append("not known" if math.isnan(savings[other]) else f"{savings[other]:.0%}")
                    if saved > LEAST_SAVING and not math.isnan(savings[other]):
                        is_right = abs(savings[other] / saved - 1) <= TOLERANCE
                        rights[source].append(is_right)
                        cells[-1] += f" ({'right' if is_right else 'wrong'})"
                row = f"| {nbytes} | {name} {seconds[name]:.4f} s | {other} {seconds[other]:.4f} s | {saved:.0%}"
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
        "--reductions", nargs=4, metavar=("BYTES", "TURNS", "CALLS", "SECONDS"), help="run one rank of all_reduces"
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=[*DOCS, *RUNS])
    arguments = parser.parse_args()
    if arguments.run:
        RUNS[arguments.run]()
    elif arguments.reductions:
        nbytes, turns, calls, compute_s = arguments.reductions
        run_reductions(int(nbytes), int(turns), int(calls), float(compute_s))
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
