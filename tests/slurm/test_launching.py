"""Tests of job scripts whose ranks do not start: the launch is ended, named, and tried again by the next launcher."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.slurm.batch import submit

pytestmark = pytest.mark.slow

SMALL = ("-b", "8", "-e", "8", "-n", "3", "--engine", "mpi")
LIMIT_S = 6


@pytest.fixture
def replaced_srun(tmp_path):
    """Return a function that puts a srun first in PATH that hangs, or fails, for commands with a given word."""

    def replace(word: str, action: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "srun"
        program.write_text(
            f"""#!/bin/bash
case " $* " in *" --mpi=pmi2 "*" {word} "*) {action} ;; esac
exec {shutil.which("srun")} "$@"
"""
        )
        program.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}", "HPCCOLL_START_TIMEOUT": str(LIMIT_S)}

    return replace


def test_a_step_that_hangs_is_ended_and_started_by_mpirun(lab, tmp_path, replaced_srun):
    job = submit(lab, tmp_path, "allreduce.sh", *SMALL, env=replaced_srun("bench", "exec sleep 1000"))
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    assert ", by srun of MPICH" in job.output
    named = f"failed: the 8 ranks did not all start within {LIMIT_S} s (HPCCOLL_START_TIMEOUT)"
    assert f"{named}; mpirun is tried next" in job.output
    assert named in job.ending
    assert [row["wrong"] for row in job.records("allreduce.jsonl")] == [0]
    assert job.ending.endswith("complete\n")


def test_a_step_that_ends_before_its_ranks_start_is_started_by_mpirun(lab, tmp_path, replaced_srun):
    job = submit(lab, tmp_path, "allreduce.sh", *SMALL, env=replaced_srun("bench", "exit 1"))
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    assert "failed: it ended with status 1 before all 8 ranks had started" in job.output
    assert [row["wrong"] for row in job.records("allreduce.jsonl")] == [0]


def test_a_launcher_that_hangs_at_the_test_of_launchers_is_passed_over(lab, tmp_path, replaced_srun):
    job = submit(lab, tmp_path, "allreduce.sh", *SMALL, env=replaced_srun("python", "exec sleep 1000"))
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    assert ", by mpirun of MPICH" in job.output


def test_without_another_launcher_the_job_fails_in_time_with_a_remedy(lab, tmp_path, replaced_srun):
    env = replaced_srun("bench", "exec sleep 1000") | {"HPCCOLL_LAUNCHER": "srun"}
    job = submit(lab, tmp_path, "allreduce.sh", *SMALL, env=env | {"HPCCOLL_NODE_WAIT_S": "0"})
    assert job.ended(60) == ("FAILED", "4:0"), job.output
    assert "Error: no launcher starts 8 ranks as one job of MPICH" in job.output
    assert f"the 8 ranks did not all start within {LIMIT_S} s" in job.output
    assert "raise HPCCOLL_START_TIMEOUT (now 6 s)" in job.output
    assert "exit status 4" in job.ending
