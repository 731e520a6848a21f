"""Start a small job many times in a lab, by srun and by mpirun, beside processes that occupy the cores.

    python bench/start_trials.py -n 30 --spinning 2 --json start_trials.jsonl

Each start runs `hpccoll bench` on 4 nodes x 2 ranks. The exit status is 1 unless every start ran, or ended with an
error message within LIMIT_S seconds. The script writes one JSON object of kind `start_trial` per start: `launcher`,
`outcome` (`ran`, `error` or `hung`), `seconds`, `load` (of this machine, per core, before the start), `message` (of an
error). `--without-relay` lets MPICH send its long lines to SLURM's mpi/pmi2, from which hpccoll protects a start by
srun (hpccoll/processes/pmi_relay.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hpccoll.lab import ClusterSpec, Lab

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
LIMIT_S = 60.0
BENCH = ("bench", "all_reduce", "-b", "8", "-e", "8", "-n", "3", "--engine", "mpi")
LAUNCHERS = {
    "srun": ["srun", "--mpi=pmi2", "--kill-on-bad-exit=1"],
    "mpirun": ["env", "-u", "SLURM_NTASKS_PER_NODE", str(BIN / "mpirun"), "-n", "8", "-ppn", "2"],
}


def trial(lab: Lab, launcher: str, *, relay: bool) -> dict[str, Any]:
    """Start a job of 8 ranks by `launcher`, end it after LIMIT_S seconds, and return the trial's record."""
    begin, load = time.monotonic(), os.getloadavg()[0] / (os.cpu_count() or 1)
    program = [*([] if relay else ["env", "-u", "PMI_JOBID"]), str(BIN / "hpccoll"), *BENCH]
    command = ["salloc", "--quiet", "--nodes=4", "--ntasks-per-node=2", "--", *LAUNCHERS[launcher], *program]
    process = lab.start(command)
    message = ""
    try:
        _, told = process.communicate(timeout=LIMIT_S)
        outcome = "ran" if process.returncode == 0 else "error"
        if outcome == "error":
            message = next((line for line in told.splitlines() if "error" in line.lower()), "")
    except subprocess.TimeoutExpired:
        outcome = "hung"
        lab.run(["scancel", "--signal=KILL", "--user", "root" if os.geteuid() == 0 else str(os.geteuid())])
        process.kill()
        message = process.communicate()[1].partition("\n")[0]
    seconds = round(time.monotonic() - begin, 2)
    named = outcome == "ran" or (outcome == "error" and bool(message))
    return {
        "kind": "start_trial",
        "launcher": launcher,
        "relay": relay,
        "outcome": outcome,
        "good": named,
        "seconds": seconds,
        "load": round(load, 2),
        "message": message,
    }


def format_summary(rows: list[dict[str, Any]]) -> str:
    """Return one line per launcher: the number of starts of each outcome, and the median and longest time."""
    lines = []
    for launcher in dict.fromkeys(row["launcher"] for row in rows):
        own = [row for row in rows if row["launcher"] == launcher]
        counts = ", ".join(
            f"{sum(row['outcome'] == outcome for row in own)} {outcome}" for outcome in ("ran", "error", "hung")
        )
        seconds = [row["seconds"] for row in own]
        lines.append(
            f"{launcher}: {len(own)} starts: {counts}; median {statistics.median(seconds)} s, longest {max(seconds)} s"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the trials; return 1 unless every start ran or ended with an error message."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", type=int, default=30, help="starts per launcher (30)")
    parser.add_argument("--spinning", type=int, default=2, help="processes that occupy the cores meanwhile (2)")
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="one of them alone (both)")
    parser.add_argument("--without-relay", action="store_true", help="do not shorten MPICH's messages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records to FILE")
    options = parser.parse_args()
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(options.spinning)]
    rows = []
    try:
        with tempfile.TemporaryDirectory(prefix="start-") as folder:
            spec = ClusterSpec(nodes=4, cpus=2, shares=(str(ROOT), sys.prefix, folder))
            with Lab(spec) as lab:
                for _ in range(options.n):
                    for launcher in options.launcher or LAUNCHERS:
                        rows.append(trial(lab, launcher, relay=not options.without_relay))
                        print(json.dumps(rows[-1]), flush=True)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
        if options.json is not None:
            options.json.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(format_summary(rows))
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
