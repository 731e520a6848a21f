"""Interrupts random programs at random instants: `python -m tests.jobs.random_interruptions 500 2` on two ranks.

A third number is the seed of the first program.

Prints the failures and how the rounds ended; exits with status 1 after a failure. The environment of
the interpreter decides the MPI library.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.jobs import launch

ROUNDS = 10  # of one job; a job whose ranks wait inside MPI for the interrupted rank ends early
JOB_S = 600  # more than a job takes on a very busy machine; interrupted_program.py finds ranks that hang in a round


def run_job(seed: int, ranks: int) -> tuple[Counter[str], str]:
    """Run one program.

    Returns:
        The numbers of interruptions that were armed and that occurred ("armed", "interrupted"), of rounds by outcome
        and rank ("finished", "refused"), and of jobs that exited with an error ("ended jobs"); and a description of
        the failure, empty if there is none.
    """
    program = str(Path(__file__).with_name("interrupted_program.py"))
    launch.LIMIT_S = JOB_S
    with tempfile.NamedTemporaryFile() as places:
        places.write(bytes(16 * ranks))
        places.flush()
        done = launch.run_script([program, str(seed), str(ROUNDS), places.name], ranks, HPCCOLL_TUNING="off")
    said = f"seed {seed}, {ranks} ranks: status {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-6000:]}"
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    counts = Counter(words[0] for words in lines if words[0] in ("armed", "interrupted"))
    counts.update(words[-1] for words in lines if words[0] == "round")
    if done.returncode == -1 or any(words[0] == "hang" for words in lines):
        return counts, f"a hang: {said}"
    if "AssertionError" in said:
        return counts, f"a wrong number: {said}"
    if done.returncode:
        counts["ended jobs"] += 1
        if "is unusable" not in done.stderr:
            return counts, f"another error: {said}"
    return counts, ""


def run_interruptions(count: int, ranks: int, first_seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Run programs until `count` interruptions have been armed; return the counts and the failures.

    A job that arms none counts as one, so that the loop ends even if no job starts.
    """
    total: Counter[str] = Counter()
    failures: list[str] = []
    seed = first_seed
    while total["armed"] < count:
        counts, failure = run_job(seed, ranks)
        total += counts + Counter({"armed": not counts["armed"]})
        if failure:
            failures.append(failure)
        seed += 1
    return total, failures


def main(count: int, ranks: int, first_seed: int = 0) -> int:
    """Run the programs and print the result."""
    began = time.monotonic()
    total, failures = run_interruptions(count, ranks, first_seed)
    for failure in failures:
        print(failure, "\n", "-" * 80)
    print(f"{ranks} ranks: {dict(total)}, {len(failures)} failures, {time.monotonic() - began:.0f} s")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
