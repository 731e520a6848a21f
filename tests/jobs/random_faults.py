"""Runs jobs with randomly drawn faults, and as many without, and checks that the guilty rank is named.

    python -m tests.jobs.random_faults --count 200 --seed 1 --jobs 6

A fault run must end within the time limit + 5 s (--allowed) with an exit status other than 0. The guilty rank must be
named by the job itself, or afterwards by `hpccoll report --crash`. No other rank may be named. Two ranks that disagree
may be called a tie, and after a kill no rank may be named, which is counted. A clean run must end with status 0 and
without report. Jobs have 2 to 4 ranks, and half of those with 4 ranks emulate two nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.jobs.fault_program import FAULTS
from tests.jobs.launch import BIN, environment

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 3.0
ALLOWED_S = 5.0  # beyond the time limit
HANGS_S = 120.0
MISMATCHES = ("operation", "dtype", "count", "root")
BY_LAUNCHER = ("kill", "kill inside", "os._exit")  # launchers end the job before hpccoll does


@dataclass(frozen=True)
class FaultCase:
    """A drawn job; `ranks_per_node` is empty unless the job emulates nodes, and `fault` is `none` in a clean run."""

    seed: int
    ranks: int
    fault: str
    guilty: int
    at: int
    ranks_per_node: str = ""
    separate: bool = False  # whether the recorder files of each emulated node are in a directory of their own
    calls: int = 12


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: `problem` describes a failure, and is empty for a success."""

    case: FaultCase
    status: int
    seconds: float
    problem: str
    output: str
    named: tuple[int, ...] = ()
    is_tie: bool = False
    is_unnamed: bool = False  # whether no rank is named after a kill, because the launcher was faster than the ranks


def draw_case(seed: int, *, clean: bool = False, fault: str | None = None) -> FaultCase:
    """Return a random case."""
    rng = random.Random(seed)
    ranks = rng.choice((2, 3, 4))
    drawn = fault or rng.choice(FAULTS)
    emulated = ranks == 4 and rng.random() < 0.5
    guilty, at = rng.randrange(ranks), rng.randrange(1, 11)
    return FaultCase(
        seed, ranks, "none" if clean else drawn, guilty, at, "2" if emulated else "", emulated and rng.random() < 0.5
    )


def run_case(case: FaultCase, timeout_s: float = TIMEOUT_S, allowed_s: float = ALLOWED_S) -> Outcome:
    """Run a case and judge it; it may take `allowed_s` longer than `timeout_s`, its time limit."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        directory = Path(name)
        status, seconds, out, err = _run_job(case, directory, timeout_s)
        if case.fault == "none":
            problem = "" if status == 0 and not re.search("Guilty|Error", err) else "a clean run failed or reported"
            return Outcome(case, status, seconds, problem, out + err)
        files = [*directory.rglob("hpccoll-recorder-*")]
        for file in files:  # those of separate nodes, as a user would collect them
            if file.parent != directory:
                file.rename(directory / file.name)
        afterwards = subprocess.run(
            [str(BIN / "hpccoll"), "report", "--crash", name, "--json", "-"],
            capture_output=True, text=True, check=False, timeout=HANGS_S, cwd=ROOT,
        )  # fmt: skip
    return _judge(case, status, seconds, err, afterwards, timeout_s + allowed_s)


def _run_job(case: FaultCase, directory: Path, timeout_s: float) -> tuple[int, float, str, str]:
    """Run the job; return its exit status (-1 if it hangs), the seconds since the fault, and its output."""
    arguments = {"seed": case.seed, "calls": case.calls, "fault": case.fault, "guilty": case.guilty, "at": case.at}
    program = [sys.executable, "-m", "tests.jobs.fault_program", json.dumps(arguments)]
    more = {"HPCCOLL_TIMEOUT": f"{timeout_s:g}", "HPCCOLL_RECORDER": str(directory)}
    if case.ranks_per_node:
        more["HPCCOLL_RANKS_PER_NODE"] = case.ranks_per_node
    if case.separate:
        rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
        script = f'HPCCOLL_RECORDER="$HPCCOLL_RECORDER/node$(({rank} / {case.ranks_per_node}))" exec "$@"'
        program = ["bash", "-c", script, "bash", *program]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [str(BIN / "mpirun"), "-n", str(case.ranks), *program],
            env=environment(**more), stdout=out, stderr=err, start_new_session=True, cwd=ROOT,
        )  # fmt: skip
        try:
            status = process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended = time.time()
        out.seek(0)
        err.seek(0)
        printed, errors = out.read(), err.read()
    began = [float(found) for found in re.findall(r'{"began": ([0-9.]+)}', printed)]
    return status, ended - began[0] if began else 0.0, printed, errors


def _judge(
    case: FaultCase, status: int, seconds: float, err: str, afterwards: subprocess.CompletedProcess[str], limit_s: float
) -> Outcome:
    """Return the outcome of a fault run."""
    found: dict[str, Any] = {}
    if afterwards.returncode == 0:
        found = json.loads(afterwards.stdout.splitlines()[1])
    live = re.search(r"^Guilty: (.*)$", err, re.MULTILINE)
    in_report = tuple(map(int, re.findall(r"(?:^|; )rank (\d+) ", live[1]))) if live else None
    by_itself = re.search(r"rank (\d+) of \d+ on .*(?:ended its program|ends the job because of an uncaught)", err)
    named = (
        in_report if in_report is not None else (int(by_itself[1]),) if by_itself else tuple(found.get("guilty", ()))
    )
    # A node of two ranks that finds different calls at the end of the program sees a tie; all recordings tell more.
    is_tie_of_node = case.separate and tuple(found.get("guilty", ())) == (case.guilty,)
    is_tie = (case.ranks == 2 or is_tie_of_node) and case.fault in MISMATCHES and not named
    output = f"{err}\n--- afterwards: {afterwards.stdout}{afterwards.stderr}"
    problems = []
    if status == -1:
        problems.append("it hung")
    if status == 0 and case.fault != "os._exit":  # MPICH's launcher then takes the status of the process
        problems.append("status 0")
    # Calls with different arguments may crash MPI itself, which then ends the job.
    aborts = re.search("Assertion failed in file|Fatal error in internal|Process received signal", err)
    if not aborts and case.fault in (*MISMATCHES, "stop", "stop inside", "sleep", "mpi4py", "return") and status != 4:
        problems.append(f"status {status}, not 4")
    if seconds > limit_s:
        problems.append(f"took {seconds:.1f} s")
    is_unnamed = case.fault in BY_LAUNCHER and not named
    if named != (case.guilty,) and not is_tie and not is_unnamed:
        problems.append(f"named {named}")
    if not found:
        problems.append("recordings are unreadable")
    elif found["guilty"] and tuple(found["guilty"]) != (case.guilty,):
        problems.append(f"the report afterwards names {found['guilty']}")
    if len(re.findall("^Guilty", err, re.MULTILINE)) > 1:
        problems.append("several reports")
    return Outcome(case, status, seconds, "; ".join(problems), output, named, is_tie, is_unnamed)


def run_campaign(
    count: int, seed: int, jobs: int, *, faults: Sequence[str] = (), allowed_s: float = ALLOWED_S
) -> list[Outcome]:
    """Run `count` fault cases and as many clean cases, several jobs at a time; return the outcomes.

    The calls of clean cases may take `allowed_s`, because a healthy rank may be late on a busy machine.
    """
    cases = [draw_case(seed + at, fault=faults[at % len(faults)] if faults else None) for at in range(count)]
    cases += [draw_case(seed + count + at, clean=True) for at in range(count)]
    limits = [allowed_s if case.fault == "none" else TIMEOUT_S for case in cases]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run_case, cases, limits, [allowed_s] * len(cases)))


def main() -> int:
    """Run the campaign of the command line; print the figures, and the output of the cases that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--allowed", type=float, default=ALLOWED_S, metavar="SECONDS")
    parser.add_argument("--fault", action="append", default=[], choices=FAULTS)
    options = parser.parse_args()
    outcomes = run_campaign(options.count, options.seed, options.jobs, faults=options.fault, allowed_s=options.allowed)
    failed = [each for each in outcomes if each.problem]
    for each in failed:
        print(f"FAILED {each.problem}: {each.case}\n{each.output}\n")
    faulty = [each for each in outcomes if each.case.fault != "none"]
    print("kinds:", dict(sorted(Counter(each.case.fault for each in faulty).items())))
    print("exit statuses:", dict(sorted(Counter(each.status for each in faulty).items())))
    slowest = max((each.seconds for each in faulty), default=0.0)
    ties = sum(each.is_tie for each in faulty)
    print(
        f"{len(faulty)} fault runs, {len(outcomes) - len(faulty)} clean runs, {len(failed)} failed, {ties} ties of two"
    )
    print(f"{sum(each.is_unnamed for each in faulty)} kills after which no rank is named")
    print(f"slowest end after a fault: {slowest:.1f} s, with HPCCOLL_TIMEOUT={TIMEOUT_S:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
