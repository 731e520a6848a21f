"""`hpccoll compare` runs real MPI jobs in turns, and leaves none of their processes behind after an interrupt."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from hpccoll.compare.measured_runs import read_side
from tests.jobs.launch import BIN, LIMIT_S, command, environment


def start_compare(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `hpccoll compare` on two benchmarks of a scatter of 8 B, with its files in `tmp_path`/out."""
    bench = shlex.join(command(2, "bench", "scatter", "-e", "8", "--engine", "mpi,hpccoll", *arguments))
    words = ["compare", "--against", bench, "--run", bench, "--rounds", "2", "--output", str(tmp_path / "out")]
    return subprocess.Popen(
        [str(BIN / "hpccoll"), *words, "--json", str(tmp_path / "found.jsonl")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def list_processes(folder: Path) -> list[int]:
    """Return the processes whose command line names a file in `folder`."""
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if any(str(folder) in word for word in each.info["cmdline"] or [])]


@pytest.mark.slow
def test_jobs_run_in_turns_and_their_files_are_kept(tmp_path: Path) -> None:
    out, err = start_compare(tmp_path, "-n", "20").communicate(timeout=LIMIT_S)
    assert "A 2 runs, B 2 runs in turns" in out, err
    for side in "ab":
        runs = read_side(side, [tmp_path / "out" / side]).runs
        assert [len(run.environment["hosts"]) for run in runs] == [2, 2]
    summary = json.loads((tmp_path / "found.jsonl").read_text().splitlines()[-1])
    assert (summary["runs_a"], summary["runs_b"], summary["stop"], summary["control"]) == (2, 2, "complete", "mpi")


def test_an_interrupt_ends_all_ranks_of_the_job(tmp_path: Path) -> None:
    process = start_compare(tmp_path, "-n", "1000000000")
    deadline = time.monotonic() + LIMIT_S
    while not [file for file in (tmp_path / "out").rglob("*.part") if file.stat().st_size]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(list_processes(tmp_path / "out")) >= 3
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, (out, err)
    assert "0 of 2 rounds are finished" in err
    assert f"files of finished runs are in {tmp_path}/out" in err
    while list_processes(tmp_path / "out") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list_processes(tmp_path / "out")
