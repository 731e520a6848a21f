"""Starts of MPI by srun and mpirun, with messages that SLURM's mpi/pmi2 would cut off, and beside busy processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "long_messages.py"
BIN = Path(sys.executable).parent
LIMIT_S = 60
BY_SRUN = ("srun", "--mpi=pmi2", "-N4", "-n8")
BY_MPIRUN = ("salloc", "--quiet", "-N4", "--ntasks-per-node=2", str(BIN / "mpirun"), "-n", "8", "-ppn", "2")
needs_mpich = pytest.mark.skipif((BIN.parent / "lib" / "libmpi.so.40").exists(), reason="this environment has Open MPI")


@pytest.fixture
def busy_cores():
    """Two processes that occupy the cores."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in spinning:
        process.kill()
        process.wait()


@needs_mpich
@pytest.mark.parametrize("launcher", [BY_SRUN, BY_MPIRUN], ids=["srun", "mpirun"])
def test_hpccoll_starts_whatever_the_lengths_of_messages(lab, busy_cores, launcher):
    for _ in range(2):
        done = lab.run([*launcher, sys.executable, str(PROGRAM), "hpccoll"], timeout_s=LIMIT_S)
        assert (done.returncode, done.stdout) == (0, "8 ranks, sum 28\n"), done.stderr
        assert "pmi2" not in done.stderr


@needs_mpich
def test_lab_run_ends_a_program_without_hpccoll_that_srun_cannot_start(lab):
    run = [str(BIN / "hpccoll"), "lab", "run", "--dir", str(lab.state_dir), "--"]
    begin = time.monotonic()
    done = subprocess.run(
        [*run, *BY_SRUN, sys.executable, str(PROGRAM), "mpi4py"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert time.monotonic() - begin < LIMIT_S
    assert done.returncode == 4, done.stderr
    assert "value not properly terminated in client request" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "could not start, and the step was ended" in errors[0]
    assert "mpirun PROGRAM" in errors[0]
    assert not lab.run(["squeue", "--noheader", "--steps"]).stdout.strip()
