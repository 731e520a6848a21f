"""The scripts of bench/ that compare times of hpccoll with known times, Gloo and other programs; few repetitions."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.launch import LIMIT_S, environment, run_script
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[2] / "bench"


def read(path):
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full
def test_the_errors_of_the_clock_are_within_its_own_bounds(tmp_path):
    path = tmp_path / "clock.jsonl"
    done = run_script([str(BENCH / "clock_error.py"), "--runs", "2", "--seconds", "0.2", "--json", str(path)], 2)
    assert done.returncode == 0, done.stderr
    runs = [record for record in read(path) if record["kind"] == "clock_error"]
    assert [run["skewed"] for run in runs] == [False, True] * 2
    assert sum(run["within"] for run in runs) >= 2  # the stated bound holds in 95 % of runs, but not on busy cores
    # Clocks that are 10 ms apart and drift by 50 ppm would be wrong by more than 10,000 us.
    assert sorted(run["error_us"] for run in runs)[2] < 1000


@pytest.mark.full
def test_trials_with_and_without_a_delay_are_recorded(tmp_path):
    path = tmp_path / "trials.jsonl"
    done = run_script([str(BENCH / "straggler_trials.py"), "--count", "2", "--seed", "3", "--json", str(path)], 2)
    assert done.returncode in (0, 1), done.stderr
    trials = [record for record in read(path) if record["kind"] == "straggler_trial"]
    assert len(trials) == 2
    assert all(trial["delay_us"] > 0 for trial in trials)


@pytest.mark.full
def test_the_gloo_engine_is_compared_with_a_loop_under_torchrun(tmp_path):
    if find_spec("torch") is None:
        skip_or_fail("torch is not installed")
    path = tmp_path / "gloo.jsonl"
    few = ["--sizes", "8", "--iterations", "5", "--turns", "1", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(BENCH / "gloo_engine.py"), *few],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode in (0, 1), done.stderr
    (record,) = read(path)
    assert record["nbytes"] == 8
    assert record["loop_us"] == sorted(record["loop_us"])
    assert record["ratio"] == record["engine_us"][1] / record["loop_us"][1]


def test_whole_programs_give_the_results_of_one_process(tmp_path):
    path = tmp_path / "programs.jsonl"
    few = ["--sizes", "32K", "--seconds", "0.02", "--json", str(path)]
    done = run_script([str(BENCH / "programs.py"), *few], 2)
    assert done.returncode == 0, done.stderr
    sides = [record for record in read(path) if record["kind"] == "comparison"]
    assert [side["wrong"] for side in sides] == [0] * len(sides)
    assert {side["case"] for side in sides} == {"Jacobi", "conjugate gradients", "k-means"}


def test_a_collective_is_compared_with_the_fastest_peer(tmp_path):
    path = tmp_path / "best_peers.jsonl"
    few = ["--sizes", "1K", "--turns", "1", "--peers", "MPICH;hpccoll over MPICH", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(BENCH / "best_peers.py"), *few],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = [record for record in read(path) if record["kind"] == "best_peers"]
    assert [record["style"] for record in records] == ["written", "repeated"]
    for record in records:
        assert record["fastest_peer"] == "MPICH"
        medians = {name: times[1] for name, times in record["time_us"].items()}
        assert (
            abs(record["ratio"]["hpccoll over MPICH"][1] * medians["hpccoll over MPICH"] / medians["MPICH"] - 1) < 0.02
        )
