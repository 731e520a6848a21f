"""Starts real MPI jobs of the command line, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.remaining_processes import MARK, end_processes, print_stacks

BIN = Path(sys.executable).parent
LIMIT_S = 240  # less than the time limit of a test in pyproject.toml
JOB_MARK = f"{os.getpid()} {time.time()}"  # in the environment of all jobs of this process


def environment(**more: str) -> dict[str, str]:
    """Return this environment with the variables that both MPIs need to run as root and with more ranks than cores."""
    ours = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "HPCCOLL_TUNING": "off",  # a table on this machine must not decide what tests run
        MARK: JOB_MARK,
    }
    return os.environ | ours | more


def run_script(
    script: str | Sequence[str], ranks: int, *, launcher: Sequence[str] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python on `ranks` ranks and return the exit status and the output.

    The ranks of a job that does not end in time print their stacks, and the job is killed; its exit status is -1.

    Args:
        script: the code, or the words after `python`.
        ranks: number of ranks.
        launcher: options of mpirun.
        more: environment variables.
    """
    words = ["-c", script] if isinstance(script, str) else script
    mark = f"{JOB_MARK} {time.monotonic_ns()}"  # of this job alone
    # Output goes to files, because killed ranks would keep pipes open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [str(BIN / "mpirun"), *launcher, "-n", str(ranks), sys.executable, *words],
            env=environment(**more) | {MARK: mark, "PYTHONFAULTHANDLER": "1"},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = -1
            print_stacks(mark)
            time.sleep(1)
            process.terminate()  # launchers pass the signal on to the ranks
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            end_processes(mark)
            process.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())


def command(ranks: int, *arguments: str) -> list[str]:
    """Return the words that run `hpccoll ARGUMENTS` on `ranks` ranks."""
    return [str(BIN / "mpirun"), "-n", str(ranks), str(BIN / "hpccoll"), *arguments]


def hpccoll(ranks: int, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `hpccoll ARGUMENTS` on `ranks` ranks and return the exit status and the output."""
    return subprocess.run(
        command(ranks, *arguments),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(**more),
    )
