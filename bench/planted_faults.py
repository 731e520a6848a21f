"""Plant faults into real jobs of 4 ranks, and check that `hpccoll profile` names each of them with its cost.

The faults are: a rank that computes 30 % longer; a rank that waits 0.25 s for a pipe in every fifth step; a slow link
of one node; and an all-reduce of 100 numbers that is split into 100 calls. A run first carries out the program with and
without the fault once, which warms up caches of files and is not measured. It then records the program with the fault,
and measures it without. The saving is the time of the recorded run, which varies by 10 % over a slow link, minus the
shortest time without the fault. A hit is a run in which the first finding names the rank, the node or the line, with a
cost within 15 % of the saving.

    python bench/planted_faults.py --runs 10 [FAULT...]

Programs sleep in place of computing, so that other programs of the machine disturb them little. The faults `link` and
`split` run on a lab of four nodes (`hpccoll lab`), whose links carry 200 Mbit/s and add 2 ms.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpccoll.lab import ClusterSpec, Lab, parse_rate
from hpccoll.profile import explain_profile, read_profile
from hpccoll.profile.explanation_records import make_records

RANKS, STEPS, TURNS, COMPUTE_S, IO_S = 4, 20, 3, 0.1, 0.25
NBYTES: Final = 2**19  # more than the burst of 128 KiB that the links of a lab let pass at full speed
RATE, SLOW_RATE, LATENCY_S = "200M", "20M", 2e-3
FAULTY, TOLERANCE, LIMIT_S = 2, 0.15, 120
BIN = Path(sys.executable).parent
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def find_line(text: str) -> int:
    """Return the number of the line of this file that ends in the comment `text`."""
    return next(number for number, line in enumerate(LINES, 1) if line.endswith(f"# {text}"))


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault: the programs that have it, and the fields of the finding that names it.

    `steps` is the number of steps of a run, and `in_lab` whether the runs need a lab.
    """

    programs: tuple[str, ...]
    fields: dict[str, Any]
    steps: int = STEPS
    in_lab: bool = False


FAULTS: Final = {
    "imbalance": Fault(("stencil", "solver", "pipeline"), {"cause": "late_rank", "rank": FAULTY}),
    "io": Fault(("stencil", "solver", "pipeline"), {"cause": "late_rank", "rank": FAULTY, "lateness": "outside"}),
    "link": Fault(("stencil", "pipeline"), {"cause": "slow_link", "node": f"node{FAULTY + 1}"}, 12, in_lab=True),
    "split": Fault(("solver",), {"cause": "calls_in_a_row", "line": find_line("split")}, 5, in_lab=True),
}


class Program:
    """One rank of a program, with or without a fault.

    Args:
        fault: the name of the fault, or an empty string.
        steps: the number of steps.
    """

    def __init__(self, fault: str, steps: int) -> None:
        from mpi4py import MPI

        self.comm, self.fault, self.steps = MPI.COMM_WORLD, fault, steps
        self.rank, self.size, self.is_faulty = self.comm.rank, self.comm.size, self.comm.rank == FAULTY

    def run(self, name: str) -> float:
        """Run the program; return its seconds from a barrier to a barrier."""
        step = {"stencil": self._step_stencil, "solver": self._step_solver, "pipeline": self._step_pipeline}[name]
        self.comm.Barrier()
        begin_s = time.perf_counter()
        for number in range(self.steps):
            step(number)
        self.comm.Barrier()
        return time.perf_counter() - begin_s

    def _compute(self, step: int) -> None:
        """Sleep in place of computing, and wait for a pipe if the fault is `io`."""
        longer = 1.3 if self.fault == "imbalance" and self.is_faulty else 1.0
        time.sleep(COMPUTE_S * longer)
        if self.fault == "io" and self.is_faulty and step % 5 == 4:
            read, write = os.pipe()
            threading.Timer(IO_S, os.write, (write, b"x")).start()
            os.read(read, 1)
            os.close(read)
            os.close(write)

    def _step_stencil(self, step: int) -> None:
        """Exchange rows with both neighbors in a ring, and reduce the largest change."""
        rows, halo = np.zeros(NBYTES, np.uint8), np.empty(NBYTES, np.uint8)
        self._compute(step)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.comm.Sendrecv(rows, after, 0, halo, before, 0)
        self.comm.Sendrecv(rows, before, 1, halo, after, 1)
        self.comm.allreduce(float(step))

    def _step_solver(self, step: int) -> None:
        """Gather a vector, and reduce 100 inner products."""
        own, whole, products = np.zeros(1000), np.empty(1000 * self.size), np.zeros(100)
        self._compute(step)
        self.comm.Allgather(own, whole)
        if self.fault == "split":
            for index in range(len(products)):
                products[index] = self.comm.allreduce(products[index])  # split
        else:
            self.comm.Allreduce(products.copy(), products)

    def _step_pipeline(self, step: int) -> None:
        """Pass an array from rank to rank, from the first one to the last one; each rank computes before it sends."""
        data = np.zeros(NBYTES, np.uint8)
        if self.rank:
            self.comm.Recv(data, self.rank - 1)
        self._compute(step)
        if self.rank < self.size - 1:
            self.comm.Send(data, self.rank + 1)


def run_job(words: Sequence[str], lab: Lab | None) -> float:
    """Run 4 ranks of this script, on 4 nodes if there is a lab; return the seconds that rank 0 prints."""
    words = [str(BIN / "mpirun"), "-n", str(RANKS), *words]
    if lab is None:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    else:
        allocation = ["salloc", "--quiet", f"--nodes={RANKS}", "--ntasks-per-node=1", "--"]
        done = lab.run([*allocation, *words], timeout_s=LIMIT_S)
    seconds = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("seconds")]
    if not seconds:
        raise SystemExit(done.stdout + done.stderr)
    return float(seconds[0])


def find_first_finding(directory: Path) -> dict[str, Any]:
    """Return the fields of the first finding of a recording; an empty dictionary if there is none."""
    records = (record.as_dict() for record in make_records(explain_profile(read_profile(str(directory)))))
    finding = next((record for record in records if record["kind"] == "profile_finding"), {})
    return finding | {"line": (finding.get("site") or {}).get("line")}


def run_pair(name: str, program: str, directory: Path, lab: Lab | None) -> tuple[bool, str]:
    """Record and measure a program with a fault; return whether it is a hit, and a row for the table.

    The first run with the fault and the first one without are a warm-up, and are not measured.
    """
    fault = FAULTS[name]
    healthy_s, recorded_s = [], 0.0
    script = [__file__, "--steps", str(fault.steps), "--run", program]
    record = [str(BIN / "hpccoll"), "profile", "-o", str(directory)]
    for turn in range(TURNS + 1):
        if turn < 2:
            set_rate(lab, SLOW_RATE if name == "link" else RATE)
            recorded_s = run_job([*(record if turn else [sys.executable]), *script, name], lab)
        set_rate(lab, RATE)
        healthy_s.append(run_job([sys.executable, *script, ""], lab))
    saved_s = recorded_s - min(healthy_s[1:])
    finding = find_first_finding(directory)
    is_named = all(finding.get(field) == value for field, value in fault.fields.items())
    ratio = finding.get("saved_s", 0.0) / saved_s
    is_hit = is_named and abs(ratio - 1) <= TOLERANCE
    row = f"| {name} | {program} | {'yes' if is_named else 'no'} | {finding.get('saved_s', 0.0):.3f} | {saved_s:.3f} "
    return is_hit, f"{row}| {ratio:.2f} | {'hit' if is_hit else finding.get('found', 'no finding')} |"


def set_rate(lab: Lab | None, rate: str) -> None:
    """Set the rate of the faulty rank's link."""
    if lab is not None:
        lab.set_link(f"node{FAULTY + 1}", rate=rate)


def start_lab(stack: ExitStack, directory: Path) -> Lab:
    """Return a new lab that ends with `stack`."""
    shares = (str(Path(__file__).resolve().parents[1]), sys.prefix, str(directory))
    return stack.enter_context(Lab(ClusterSpec(RANKS, 1, parse_rate(RATE), LATENCY_S, shares)))


def main() -> int:
    """Print a row per run and the number of hits; return 1 if more than one run in twenty misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "FAULT"), help="run one rank of a program")
    parser.add_argument("faults", nargs="*", metavar="FAULT", default=list(FAULTS))
    arguments = parser.parse_args()
    if arguments.run:
        job = Program(arguments.run[1], arguments.steps)
        seconds = job.run(arguments.run[0])
        if job.rank == 0:
            print("seconds", seconds, flush=True)
        return 0
    hits: dict[str, list[bool]] = {name: [] for name in arguments.faults}
    print("| fault | program | named | cost (s) | saved (s) | ratio | |\n|---|---|---|---|---|---|---|")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        needs_lab = any(FAULTS[name].in_lab for name in hits)
        lab = start_lab(stack, directory) if needs_lab else None
        for run in range(arguments.runs):
            for name, results in hits.items():
                fault = FAULTS[name]
                program = fault.programs[run % len(fault.programs)]
                is_hit, row = run_pair(name, program, directory / f"{name}-{run}", lab if fault.in_lab else None)
                results.append(is_hit)
                print(row, flush=True)
    for name, results in hits.items():
        print(f"{name}: {sum(results)} of {len(results)}")
    every = [hit for results in hits.values() for hit in results]
    print(f"all: {sum(every)} of {len(every)}")
    return int(sum(every) < 0.95 * len(every))


if __name__ == "__main__":
    sys.exit(main())
