"""Compare torch.distributed over two checkouts of hpccoll, in all operations that torch_backend.py times.

    git worktree add ../earlier COMMIT
    python bench/torch_backend_versions.py ../earlier . --sizes 8,256K,1M --json FILE

A launch starts a job of each checkout. The two jobs take turns: while one job times a batch of calls, the ranks of the
other job sleep. Each round times each checkout once, in random order. A row states the medians of both checkouts, and
the ratio of the second checkout's median to that of the first with its 95 % interval, over the samples of all launches.
The exit status is 1 if the whole interval of an operation is above MOST. Two times the same checkout show the noise.
Checkouts with a native extension need it built (python hpccoll/native/compiler.py). With --json, the file gets one JSON
object of kind `version_comparison` per operation and size: `case`, `nbytes`, `first_us` and `second_us` (medians),
`ratio`, and `launch_ratios` (of each launch).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
from torch_operations import FRESH, list_operations

from hpccoll.statistics import ratio_of_medians
from hpccoll.units import format_size, parse_size

MPIRUN = Path(sys.executable).parent / "mpirun"
RANK = Path(__file__).parent / "torch_version_rank.py"
MOST = 1.03  # the time of the second checkout over that of the first
WARM_UP = 5
END_S = 60.0  # that a job may take to end
Samples = dict[tuple[str, int], list[list[float]]]  # microseconds of each checkout, by operation and size


@contextmanager
def start_jobs(checkouts: list[Path], ranks: int, priority: int) -> Iterator[list[list[Connection]]]:
    """Start a job of each checkout; give the connections to its ranks. End the jobs afterwards.

    Raises:
        ImportError: a job has imported hpccoll from another folder than its checkout.
    """
    with ExitStack() as stack:
        address = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="versions-"))) / "socket")
        listener = stack.enter_context(Listener(address, "AF_UNIX", backlog=2 * ranks))
        connections, jobs = list[list[Connection]](), list[subprocess.Popen[bytes]]()
        for i, checkout in enumerate(checkouts):
            environment = os.environ | {
                "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            }  # fmt: skip
            words = [str(MPIRUN), "-n", str(ranks), sys.executable, "-W", "ignore", str(RANK), address, str(priority)]
            job = stack.enter_context(subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL))
            jobs.append(job)
            stack.callback(job.terminate)
            connections.append([stack.enter_context(listener.accept()) for _ in range(ranks)])
            for connection in connections[i]:
                folder = connection.recv()
                if Path(folder) != checkout:
                    raise ImportError(f"the job of {checkout} has imported hpccoll from {folder}")
        yield connections
        for job_connections in connections:
            for connection in job_connections:
                connection.send(None)
        for job in jobs:
            job.wait(END_S)


def time_once(job: list[Connection], name: str, nbytes: int, batch: int) -> float:
    """Let a job time a batch of calls; return the microseconds per call, the maximum over its ranks."""
    for connection in job:
        connection.send((name, nbytes, batch))
    return max(float(connection.recv()) for connection in job)


def measure(jobs: list[list[Connection]], samples: Samples, sizes: list[int], only: str, seconds: float) -> None:
    """Add the samples of a launch: for each operation and size, as many rounds as fit into `seconds`."""
    for nbytes in sizes:
        batch = max(1, min(20, 2**22 // max(nbytes, 1)))
        names = [FRESH, *list_operations(nbytes, 0, len(jobs[0]))]
        for name in [name for name in names if only in name]:
            columns = samples.setdefault((name, nbytes), [[], []])
            for _ in range(WARM_UP):
                for job in jobs:
                    time_once(job, name, nbytes, batch)
            deadline = time.monotonic() + seconds
            rounds = 0
            while time.monotonic() < deadline or rounds < WARM_UP:
                for i in random.sample((0, 1), 2):
                    columns[i].append(time_once(jobs[i], name, nbytes, batch))
                rounds += 1


def summarize(samples: Samples, launches: list[Samples]) -> list[dict[str, Any]]:
    """Return the record of each operation and size."""
    return [
        {
            "kind": "version_comparison", "case": name, "nbytes": nbytes,
            "first_us": round(float(np.median(first)), 2), "second_us": round(float(np.median(second)), 2),
            "ratio": asdict(ratio_of_medians(second, first)),
            "launch_ratios": [
                round(float(np.median(launch[name, nbytes][1]) / np.median(launch[name, nbytes][0])), 3)
                for launch in launches
            ],
        }
        for (name, nbytes), (first, second) in samples.items()
    ]  # fmt: skip


def format_record(record: dict[str, Any]) -> str:
    """Return a record as a row of the table."""
    ratio = record["ratio"]
    return (
        f"{format_size(record['nbytes']):>8} {record['case']:<26} {record['first_us']:>10.2f} "
        f"{record['second_us']:>10.2f} {ratio['value']:>6.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] "
        f"{' '.join(f'{each:.2f}' for each in record['launch_ratios'])}{'  SLOWER' if ratio['low'] > MOST else ''}"
    )


def main() -> int:
    """Compare two checkouts; return 1 if an operation of the second one is slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT", help="the earlier one and the later one")
    parser.add_argument("-n", type=int, default=2, help="ranks (2)")
    parser.add_argument("--launches", type=int, default=5, help="times to start both jobs (5)")
    parser.add_argument("--seconds", type=float, default=0.4, help="seconds per launch, operation and size (0.4)")
    parser.add_argument("--sizes", default="8,16K,256K,1M,16M", help="message sizes, joined by commas (%(default)s)")
    parser.add_argument("--only", default="", help="time operations whose names contain this")
    parser.add_argument("--priority", type=int, default=0, help="real-time priority (0: none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the records to FILE")
    options = parser.parse_args()
    if len(options.checkouts) != 2:
        parser.error("pass two checkouts")
    if options.priority:  # of this process and the ranks; mpirun, which polls, keeps normal priority
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(options.priority))
    samples, launches = Samples(), list[Samples]()
    for _ in range(options.launches):
        launches.append({})
        with start_jobs([each.resolve() for each in options.checkouts], options.n, options.priority) as jobs:
            sizes = [parse_size(size) for size in options.sizes.split(",")]
            measure(jobs, launches[-1], sizes, options.only, options.seconds)
        for key, columns in launches[-1].items():
            for all_launches, launch in zip(samples.setdefault(key, [[], []]), columns, strict=True):
                all_launches.extend(launch)
    records = summarize(samples, launches)
    print("\n".join(format_record(record) for record in records))
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    return int(any(record["ratio"]["low"] > MOST for record in records))


if __name__ == "__main__":
    sys.exit(main())
