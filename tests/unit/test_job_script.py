"""Functions of slurm/job.sh, with stand-ins for the commands of SLURM."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[2] / "slurm"


def run_functions(script: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a bash script that has sourced job.sh; commands of SLURM print their words to the file `calls`."""
    binaries = directory / "bin"
    binaries.mkdir(exist_ok=True)
    for command in ("scontrol", "sbatch"):
        (binaries / command).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {shlex.quote(str(directory))}/calls\n')
        (binaries / command).chmod(0o755)
    ours = {"HPCCOLL_SLURM": str(SLURM), "PATH": f"{binaries}:{os.environ['PATH']}", "SLURM_JOB_NAME": "job"}
    return subprocess.run(
        ["bash", "-c", f'source "$HPCCOLL_SLURM/job.sh"; {script}'],
        env=os.environ | ours | environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("restarts", "is_requeued"), [("19", True), ("20", False)])
def test_a_job_is_requeued_a_limited_number_of_times(tmp_path, restarts, is_requeued):
    script = "warned=yes STATUS=130 stop_file=stop JOB=7 RESULTS=$PWD; finish"
    done = run_functions(script, tmp_path, SLURM_RESTART_COUNT=restarts, HPCCOLL_REQUEUE_S="0")
    assert (tmp_path / "calls").exists() == is_requeued
    assert done.returncode == 4
    assert ("after 20 restarts" in done.stderr) != is_requeued
    assert f"HPCCOLL_RESUME='{tmp_path}'" in done.stderr


@pytest.mark.parametrize("name", ["plain", "it's", "a 'b' \\ c", '"$HOME"'])
def test_the_report_job_gets_paths_with_special_characters(tmp_path, name):
    directory = tmp_path / name
    directory.mkdir()
    script = "RESULTS=$OWN/1; mkdir -p $OWN/1 2>/dev/null; submit_report_job"
    run_functions(
        script.replace("$OWN/1", '"$OWN/1"'),
        tmp_path,
        OWN=str(directory),
        SLURM_ARRAY_JOB_ID="7",
        SLURM_JOB_PARTITION="all",
    )
    words = (tmp_path / "calls").read_text().splitlines()
    wrapped = words[words.index("--wrap") + 1]
    assert shlex.split(wrapped)[-2:] == [str(SLURM), str(directory)]
    shown = subprocess.run(
        ["sh", "-c", wrapped.replace("bash -c", "printf '%s,'")], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split(",")[-2] == str(directory)
