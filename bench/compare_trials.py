"""Count how often `hpccoll compare` is right on runs of this machine: with equal sides, and with an operation delayed.

    python bench/compare_trials.py -n 20 --json compare_trials.jsonl

Conditions:

- `same`: two files of the same command. Right is no evidence of a difference.
- `same-turns`: the same command on both sides, in turns. Right is no evidence of a difference.
- `slower`: two files; in B, one operation of hpccoll takes 10 % longer (bench/delayed_bench.py). Right is exit status
  1, and a verdict on this operation or its rows alone. If the verdict is no evidence, and `hpccoll compare` reports
  that other programs disturbed the runs, both files are measured again, up to ATTEMPTS times in all.
- `slower-turns`: the same with 5 %, and both sides in turns; if a comparison has no evidence and asks for a number of
  rounds, both sides are measured again with this number, once.
- `loaded`: two files of the same command with three ranks on two cores, in a quarter of the trials beside a program
  that keeps a core busy. Right is no evidence of a difference.

Every run is a real `mpirun -n 2 hpccoll bench`, in the condition `loaded` with three ranks and of about 10 s.
With --json, trials that are in the file already are not repeated, so
that --seconds can divide a long campaign. Each trial appends a JSON object of kind `compare_trial`: `condition`, `op`
(delayed), `worse`, `better`, `right`, `status` (exit status), `noise`, `drift`, `ratio` (of the delayed operation, or
the largest), `rounds`, `disturbed` (as in the summary of the comparison), `attempts`, `seconds`, `load` (of this
machine, per core, before the trial). The exit status is 1 if too few trials are right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

HERE, BIN = Path(__file__).parent, Path(sys.executable).parent
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
ARGUMENTS = ("--out-of-place", *shlex.split("-b 1K -e 256K -f 4 --engine mpi,hpccoll -n 200 -c 0"))
PERCENT = {"same": 0, "same-turns": 0, "slower": 10, "slower-turns": 5, "loaded": 0}
MAX_WRONG = {"same": 1, "same-turns": 1, "slower": 2, "slower-turns": 3, "loaded": 0.5}  # of 20
LOADED = shlex.split("all_reduce -b 1K -e 64K -f 8 --engine mpi,hpccoll --budget 0.6")
SPIN = (sys.executable, "-c", "while True: pass")
ATTEMPTS = 3
LIMIT_S = 600
Compared = tuple[int, list[dict[str, Any]]]


def make_command(op: str | None, percent: float) -> list[str]:
    """Return the command of a run; `op` is the operation to delay, None for plain `hpccoll bench`."""
    program = [str(BIN / "hpccoll"), "bench"]
    if op is not None:
        program = [sys.executable, str(HERE / "delayed_bench.py"), op, str(percent)]
    return [str(BIN / "mpirun"), "-n", "2", *program, *OPERATIONS, *ARGUMENTS]


def make_loaded_command() -> list[str]:
    """Return the command of a run of about 10 s with more ranks than the two cores that a trial expects."""
    return [str(BIN / "mpirun"), "-n", "3", str(BIN / "hpccoll"), "bench", *LOADED]


@contextmanager
def keep_core_busy(wanted: bool) -> Iterator[None]:
    """Run a program that keeps a core busy, if `wanted`."""
    with ExitStack() as stack:
        if wanted:
            program = stack.enter_context(subprocess.Popen(SPIN))
            stack.callback(program.kill)
        yield


def run(words: list[str]) -> int:
    """Run a command and return its exit status, 0 or 1; end the script if it has another one."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.returncode


def is_unclear(summary: dict[str, Any]) -> bool:
    """Whether a comparison found nothing in runs that other programs disturbed."""
    return bool(summary["disturbed"]) and not (summary["worse"] or summary["better"])


def compare_turns(a: list[str], b: list[str], draw: random.Random, folder: Path, rounds: int) -> Compared:
    """Run both commands in turns by `hpccoll compare`; return its exit status and its records."""
    output = tempfile.mkdtemp(dir=folder)
    sides = ["--against", shlex.join(a), "--run", shlex.join(b), "--output", output]
    return compare([*sides, "--rounds", str(rounds), "--seed", str(draw.randrange(1000))], folder)


def compare_files(a: list[str], b: list[str], draw: random.Random, folder: Path) -> Compared:
    """Run both commands once, in random order, and compare their files; return the exit status and the records."""
    files = [folder / "a.jsonl", folder / "b.jsonl"]
    for side in draw.sample(range(2), 2):
        run([*(a, b)[side], "--json", str(files[side]), "--overwrite"])
    return compare([str(file) for file in files], folder)


def compare(words: list[str], folder: Path) -> Compared:
    """Run `hpccoll compare` with arguments `words`; return its exit status and its records."""
    records = folder / "compared.jsonl"
    status = run([str(BIN / "hpccoll"), "compare", "--json", str(records), "--overwrite", *words])
    return status, [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]


def run_trial(condition: str, op: str | None, rounds: int, draw: random.Random, folder: Path) -> dict[str, Any]:
    """Measure both sides, compare them, and return the trial's record."""
    begin, load = time.monotonic(), os.getloadavg()[0] / (os.cpu_count() or 1)
    a, b = make_command(op, 0), make_command(op, PERCENT[condition])
    if condition == "loaded":
        a = b = make_loaded_command()
    measure = partial(compare_turns, rounds=rounds) if condition.endswith("turns") else compare_files
    with keep_core_busy(condition == "loaded" and draw.random() < 1 / 4):
        attempts, (status, lines) = 1, measure(a, b, draw, folder)
    if condition == "slower-turns" and (lines[-1]["rounds"] or 0) > rounds:
        attempts, (status, lines) = 2, compare_turns(a, b, draw, folder, lines[-1]["rounds"])
    while condition == "slower" and is_unclear(lines[-1]) and attempts < ATTEMPTS:
        attempts, (status, lines) = attempts + 1, measure(a, b, draw, folder)
    summary, operations = lines[-1], [line for line in lines if line["kind"] == "compared_operation"]
    found = {name.split()[0] for name in summary["worse"] + summary["better"]}
    right = not found if op is None else status == 1 and found == {op} and not summary["better"]
    ratio = max((line["ratio"] for line in operations if op in (None, line["op"])), key=lambda each: abs(each - 1))
    return {
        "kind": "compare_trial",
        "condition": condition,
        "op": op,
        "worse": summary["worse"],
        "better": summary["better"],
        "right": right,
        "status": status,
        "noise": round(summary["noise"], 4),
        "drift": round(summary["drift"], 4),
        "ratio": round(ratio, 4),
        "rounds": summary["runs_a"],
        "disturbed": summary["disturbed"],
        "attempts": attempts,
        "seconds": round(time.monotonic() - begin, 2),
        "load": round(load, 2),
    }


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--trials", type=int, default=20, help="trials of each condition; default %(default)s")
    parser.add_argument("--conditions", default=",".join(PERCENT), help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=8, help="of comparisons in turns; default %(default)s")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no trial after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the trials to this file")
    return parser.parse_args()


def main() -> int:
    """Run the trials that are missing, and print how many of each condition are right."""
    options, begin = parse_options(), time.monotonic()
    done: dict[str, list[dict[str, Any]]] = {condition: [] for condition in options.conditions.split(",")}
    if options.json and options.json.exists():
        for line in map(json.loads, options.json.read_text(encoding="utf-8").splitlines()):
            done.setdefault(line["condition"], []).append(line)
    with tempfile.TemporaryDirectory(prefix="hpccoll-trials-") as folder:
        for number in range(options.trials):
            for condition, trials in done.items():
                if len(trials) > number or time.monotonic() - begin > options.seconds:
                    continue
                draw = random.Random(f"{options.seed} {condition} {number}")  # noqa: S311 - not a secret
                op = draw.choice(OPERATIONS) if PERCENT[condition] else None
                trials.append(run_trial(condition, op, options.rounds, draw, Path(folder)))
                print("right" if trials[-1]["right"] else "WRONG", json.dumps(trials[-1]), flush=True)
                if options.json:
                    with options.json.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(trials[-1]) + "\n")
    failed = False
    for condition, trials in done.items():
        right, allowed = sum(trial["right"] for trial in trials), MAX_WRONG[condition] * options.trials / 20
        failed = failed or len(trials) - right > allowed
        print(f"{condition}: {right} of {len(trials)} right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
