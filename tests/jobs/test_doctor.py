"""Runs of `hpccoll doctor`, alone and on ranks, with real faults: shared cores, wrong launchers, stale files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpccoll.doctor.shared_memory import list_library_files
from tests.depth import mark_full
from tests.jobs.launch import BIN, LIMIT_S, command, environment, hpccoll
from tests.leftovers import keep_unused_files
from tests.record_schema import require_valid
from tests.requirements import skip_or_fail, without_gpu

SHM = Path("/dev/shm")
AREAS = {
    "versions",
    "mpi",
    "launcher",
    "slurm",
    "cores",
    "shared memory",
    "limits",
    "clock",
    "topology",
    "network",
    "gpu",
}


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the record of kind `run` and the findings."""
    run, *findings = [json.loads(line) for line in path.read_text().splitlines()]
    assert run["kind"] == "run"
    assert {each["kind"] for each in findings} == {"finding"}
    return run, findings


def select_findings(findings: list[dict[str, Any]], area: str, severity: str) -> list[dict[str, Any]]:
    """Return the findings of an area with a severity."""
    return [each for each in findings if (each["area"], each["severity"]) == (area, severity)]


def run_doctor(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `hpccoll doctor` without a launcher."""
    words = [str(BIN / "hpccoll"), "doctor", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(**more))


def test_one_process_checks_every_area_and_leaves_no_shared_memory(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    before = {path.name for path in SHM.iterdir()}
    done = run_doctor("--json", str(out))
    left = [each.path.name for each in list_library_files(SHM) if each.path.name not in before and not each.in_use]
    assert not left
    assert (done.returncode, done.stderr) == (0, "")
    run, findings = read(out)
    for record in (run, *findings):
        require_valid(record)
    assert {each["area"] for each in findings} >= AREAS | {"torch", "environment"}
    assert all(each["found"] and each["evidence"] for each in findings)
    assert all(each["remedy"] for each in findings if each["severity"] in ("warning", "problem"))
    assert not any("own check failed" in each["found"] for each in findings)
    assert "Traceback" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("ok; -v shows all")
    assert select_findings(findings, "mpi", "ok")[0]["provides"] == ["mpi"]


def test_ranks_report_each_finding_once(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(2, "doctor", "-v", "--json", str(out))
    assert done.returncode == 0, done.stderr
    run, findings = read(out)
    assert run["ranks"] == 2
    assert done.stdout.count("perf_counter") == 1
    assert any("MPI connected 2 ranks" in each["found"] for each in select_findings(findings, "launcher", "ok"))
    assert any("have the same versions" in each["found"] for each in select_findings(findings, "versions", "ok"))
    assert [each for each in findings if each["area"] == "binding"]


@pytest.mark.full
def test_json_on_standard_output_has_only_records() -> None:
    done = hpccoll(2, "doctor", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["kind"] for line in done.stdout.splitlines()} == {"run", "finding"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset of util-linux")
def test_ranks_on_one_core_are_a_problem(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    core = min(os.sched_getaffinity(0))
    words = ["taskset", "-c", str(core), *command(2, "doctor", "--json", str(out))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    _, findings = read(out)
    (found,) = select_findings(findings, "binding", "problem")
    assert f"all 2 ranks are bound to core {core}" in found["found"]
    assert f"rank 0: {core}, rank 1: {core}" in found["evidence"]
    assert "--bind-to core" in found["remedy"]
    assert any("2 ranks on 1 core" in each["found"] for each in select_findings(findings, "cores", "warning"))


def test_launcher_of_another_mpi_is_a_finding() -> None:
    """Two processes get the variables that the other MPI's mpirun sets, which this MPI ignores."""
    open_mpi = (BIN / "ompi_info").exists()
    variable = "PMI_SIZE" if open_mpi else "OMPI_COMM_WORLD_SIZE"
    rank = "PMI_RANK" if open_mpi else "OMPI_COMM_WORLD_RANK"
    first = run_doctor("--json", "-", **{variable: "2", rank: "0"})
    assert first.returncode == 0, first.stderr
    findings = [json.loads(line) for line in first.stdout.splitlines()][1:]
    (found,) = select_findings(findings, "launcher", "problem")
    assert f"{variable}=2" in found["found"]
    assert "mpirun of" in found["remedy"]
    second = run_doctor("--json", "-", **{variable: "2", rank: "1"})
    assert (second.returncode, second.stdout) == (0, "")


@pytest.fixture
def unused_files_stay() -> Iterator[None]:
    with keep_unused_files():
        yield


@pytest.mark.usefixtures("unused_files_stay")
def test_shared_memory_of_a_killed_rank_is_reported() -> None:
    """MPICH leaves its segment when a rank is killed; the doctor reports the file and does not remove it."""
    script = """
import os, re, signal
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    print(*sorted(set(re.findall(r"(/dev/shm/\\S+)$", maps.read(), re.MULTILINE))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment()
    )
    assert killed.returncode == -signal.SIGKILL
    left = [path for path in map(Path, killed.stdout.split()) if path.exists()]
    if not left:
        skip_or_fail("this MPI leaves nothing behind when one process is killed")
    try:
        findings = [json.loads(line) for line in run_doctor("--json", "-").stdout.splitlines()][1:]
        (found,) = select_findings(findings, "shared memory", "warning")
        words = shlex.split(found["remedy"])
        if words[:2] == ["rm", "--"]:
            assert {str(path) for path in left} <= set(words)
        else:  # other programs have left so many files that the doctor does not list them
            assert words[:3] == ["hpccoll", "doctor", "--remove-stale"]
        assert all(path.exists() for path in left)
    finally:
        for path in left:
            path.unlink(missing_ok=True)


@without_gpu
@pytest.mark.parametrize("ranks", [mark_full(1), 2])
def test_missing_requirement_ends_with_status_3(ranks: int) -> None:
    done = hpccoll(ranks, "doctor", "--require", "mpi,cuda,ipc")
    assert done.returncode == 3
    assert done.stderr.count("--require cuda: not available") == 1
    assert "--require ipc: not available" in done.stderr
    assert "Abort" not in done.stderr
    assert "no CUDA device" in done.stderr


def test_met_requirement_ends_with_status_0() -> None:
    assert run_doctor("--require", "mpi").returncode == 0
    wrong = run_doctor("--require", "nonsense")
    assert wrong.returncode == 2
    assert "cuda_aware" in wrong.stderr


def test_unloadable_mpi_library_is_a_finding(tmp_path: Path) -> None:
    broken = tmp_path / "libmpi.so"
    broken.write_text("not a library")
    done = run_doctor("--json", "-", MPI4PY_LIBMPI=str(broken))
    assert done.returncode == 0, done.stderr
    findings = [json.loads(line) for line in done.stdout.splitlines()][1:]
    (found,) = select_findings(findings, "mpi", "problem")
    assert "the MPI library cannot be loaded" in found["evidence"]
    assert {each["area"] for each in findings} >= AREAS - {"versions"}


@pytest.mark.slow
def test_crashing_or_hanging_driver_is_a_finding(tmp_path: Path) -> None:
    """A library with the driver's file name crashes, or sleeps, as soon as it is loaded."""
    compiler = shutil.which("cc")
    if compiler is None:
        skip_or_fail("there is no C compiler: apt-get install gcc libc6-dev")
    for word, body in (("crashed by SIGSEGV", "raise(11);"), ("gave no answer within 2 s", "sleep(600);")):
        source = tmp_path / "driver.c"
        source.write_text(
            f"#include <signal.h>\n#include <unistd.h>\n__attribute__((constructor)) void f(void) {{ {body} }}\n"
        )
        subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
        done = run_doctor("--limit", "2" if "sleep" in body else "30", "--json", "-", LD_LIBRARY_PATH=str(tmp_path))
        assert done.returncode == 0, done.stderr
        findings = [json.loads(line) for line in done.stdout.splitlines()][1:]
        (found,) = select_findings(findings, "gpu", "problem")
        assert word in found["evidence"]
