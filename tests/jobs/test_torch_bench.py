"""The scripts of bench/ that time torch.distributed, as users start them, with few iterations."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.launch import run_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
BENCH = Path(__file__).parents[2] / "bench"


def list_cases(path: Path) -> list[str]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[0]["kind"] == "run"
    return [each["case"] for each in records if each["kind"] == "comparison"]


@pytest.mark.full
def test_runs_that_continue_each_other_measure_every_case_once(tmp_path):
    path = tmp_path / "torch.jsonl"
    words = [str(BENCH / "torch_backend.py"), "--sizes", "8", "--seconds", "0.001", "--resume", str(path)]
    counts = []
    for _ in range(2):
        done = run_script([*words, "--stop-after", "1"], 2)
        assert done.returncode == 0, done.stderr
        counts.append(len(list_cases(path)))
    cases = list_cases(path)
    assert 0 < counts[0] < counts[1]
    assert all(cases.count(case) == 3 for case in cases), "three sides each"


@pytest.mark.full
def test_versions_are_timed_in_turns(tmp_path):
    path = tmp_path / "versions.jsonl"
    script, checkout = BENCH / "torch_backend_versions.py", BENCH.parent
    words = [script, checkout, checkout, "--launches", "1", "--seconds", "0.01", "--sizes", "8", "--only", "barrier"]
    done = subprocess.run(
        [sys.executable, *map(str, words), "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: the machine was disturbed
    (record,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (record["case"], record["nbytes"], len(record["launch_ratios"])) == ("barrier", 8, 1)
    assert record["first_us"] > 0 < record["second_us"]


def test_a_job_with_another_checkout_is_refused(tmp_path):
    script, checkout = BENCH / "torch_backend_versions.py", BENCH.parent
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(checkout)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"the job of {tmp_path} has imported hpccoll from {checkout}" in done.stderr


@pytest.mark.full
def test_every_operation_is_compared_with_gloo(tmp_path):
    path = tmp_path / "torch.jsonl"
    words = [str(BENCH / "torch_backend.py"), "--sizes", "8", "--seconds", "0.001", "--json", str(path)]
    done = run_script(words, 2)
    assert done.returncode == 0, done.stderr
    operations = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all_single", "barrier", "gather"}
    operations |= {"scatter", "reduce", "send and recv", "batch_isend_irecv", "all_gather_object"}
    assert operations <= set(list_cases(path))


@pytest.mark.full
def test_the_script_for_clusters_names_the_placement(tmp_path):
    path = tmp_path / "cluster.jsonl"
    words = [str(BENCH / "torch_cluster.py"), "--sizes", "8", "--seconds", "0.001", "--json", str(path)]
    done = run_script(words, 2, HPCCOLL_RANKS_PER_NODE="1")
    assert done.returncode == 0, done.stderr
    assert set(list_cases(path)) == {"all_reduce, 2 nodes x 1", "DDP step, 2 nodes x 1"}
