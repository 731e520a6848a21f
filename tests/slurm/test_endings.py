"""Tests of jobs that end early: finished rows are kept, and the reason and the failed node are named."""

from __future__ import annotations

import importlib.util

import pytest

from tests.depth import mark_full
from tests.slurm.batch import submit

pytestmark = pytest.mark.slow

MANY = ("-b", "8", "-e", "4K", "-f", "8", "--engine", "mpi,hpccoll", "--algorithm", "ring", "--budget", "0.5")
ROWS, FILE = 8, "allreduce.jsonl"
SLOWLY, ENDLESS = (*MANY[:-1], "6"), (*MANY[:-1], "30")


def keys(rows):
    return [(row["nbytes"], row["engine"], row["algorithm"]) for row in rows]


def test_a_warned_job_is_requeued_and_resumes(lab, tmp_path):
    job = submit(lab, tmp_path, "allreduce.sh", *MANY)
    job.until(lambda: bool(job.records(FILE, "run")))  # the run stops after its first row at the earliest
    lab.run(["scancel", "--batch", "--signal=USR1", job.number])
    job.until(lambda: "stopped at the warning signal" in job.ending)
    first = job.records(FILE)
    assert 0 < len(first) < ROWS
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    rows = job.records(FILE)
    assert rows[: len(first)] == first
    assert len(rows) == len(set(keys(rows))) == ROWS  # every row once
    assert [run["slurm"]["restarts"] for run in job.records(FILE, "run")] == [None, "1"]
    assert job.facts()["Restarts"] == "1"
    assert "finished rows are kept" in job.output
    assert not (job.results / "stop").exists()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_warned_training_saves_is_requeued_and_resumes(lab, tmp_path):
    words, file = ("dp", "--steps", "1000"), "train.jsonl"
    job = submit(lab, tmp_path, "train.sh", *words, options=("--nodes=2", "--ntasks-per-node=1"))
    job.until(lambda: bool(job.records(file, "train")))
    lab.run(["scancel", "--batch", "--signal=USR1", job.number])
    job.until(lambda: "stopped at the warning signal" in job.ending)
    (first,) = job.records(file, "train_summary")
    reached = first["steps"]
    assert (first["stop"], reached < 1000) == ("stop_file", True)
    assert first["checkpoint"] == str(job.results / "checkpoint" / f"step-{reached:08d}")
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    assert [step["step"] for step in job.records(file, "train")] == list(range(1, 1001))  # every step once
    last = job.records(file, "train_summary")[-1]
    assert (last["resumed_at"], last["stop"], last["steps"]) == (reached, "complete", 1000)
    assert [run["slurm"]["restarts"] for run in job.records(file, "run")] == [None, "1"]
    assert [run["hosts"] for run in job.records(file, "run")] == [["node1", "node2"]] * 2
    assert f"# resumed after step {reached} from {job.results}/checkpoint" in job.output
    assert "finished steps are kept" in job.output
    assert sorted(path.name for path in (job.results / "checkpoint").glob("step-*")) == [
        "step-00000900",
        "step-00001000",
    ]
    assert not (job.results / "stop").exists()


def test_a_cancelled_job_keeps_its_rows(lab, tmp_path):
    job = submit(lab, tmp_path, "allreduce.sh", *MANY[:-1], "2")
    job.until(lambda: bool(job.records(FILE)))
    lab.run(["scancel", job.number])
    assert job.ended() == ("CANCELLED", "143:0")
    assert "Error: cancelled; results so far are in" in job.output
    assert "attempt 1: cancelled" in job.ending
    assert all(row["wrong"] == 0 for row in job.records(FILE))


@pytest.mark.full
def test_resume_continues_an_earlier_job(lab, tmp_path):
    job = submit(lab, tmp_path, "allreduce.sh", *MANY)
    job.until(lambda: bool(job.records(FILE)))
    lab.run(["scancel", job.number])
    job.ended()
    before = job.records(FILE)
    other = submit(lab, tmp_path, "allreduce.sh", *MANY, env={"HPCCOLL_RESUME": str(job.results)})
    assert other.ended() == ("COMPLETED", "0:0"), other.output
    rows = job.records(FILE)
    assert rows[: len(before)] == before
    assert len(rows) == len(set(keys(rows))) == ROWS


def test_the_time_limit_keeps_rows(lab, tmp_path):
    unwarned = ("--time=00:01:00", "--signal=B:CONT@1", "--no-requeue")
    job = submit(lab, tmp_path, "allreduce.sh", *ENDLESS, options=unwarned)
    assert job.ended(200) == ("TIMEOUT", "143:0")
    assert "Error: the time limit was reached; results so far are in" in job.output
    assert job.records(FILE)


@pytest.mark.full
def test_the_warning_before_the_time_limit_requeues(lab, tmp_path):
    job = submit(lab, tmp_path, "allreduce.sh", *SLOWLY, options=("--time=00:01:00", "--signal=B:USR1@45"))
    job.until(lambda: int(job.facts()["Restarts"]) >= 1)
    lab.run(["scontrol", "update", f"JobId={job.number}", "TimeLimit=00:30:00"])
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    assert len(job.records(FILE)) == ROWS


@pytest.mark.parametrize("node", ["node3", mark_full("node1")])
def test_a_failed_node_is_named_and_the_job_resumes_without_loss(lab, tmp_path, node):
    job = submit(lab, tmp_path, "allreduce.sh", *ENDLESS[:-1], "5")
    job.until(lambda: bool(job.records(FILE)))
    lab.set_power(node, on=False)
    before = job.records(FILE)
    job.until(lambda: "PENDING" in job.facts()["JobState"])  # SLURM has detected the failure and requeued the job
    if node != "node1":  # the batch script itself ran on node1
        assert f"a node failed: {node}" in job.ending
        assert f"Error: a node failed: {node}" in job.output
    assert job.records(FILE)[: len(before)] == before
    lab.run(["scancel", job.number])
    other = submit(
        lab, tmp_path, "allreduce.sh", *MANY, options=("--nodes=3",), env={"HPCCOLL_RESUME": str(job.results)}
    )
    assert other.ended() == ("COMPLETED", "0:0"), other.output
    assert f"unusable nodes at this restart: {node}" not in other.ending  # only a restarted job logs it
    assert {row["ranks"] for row in job.records(FILE)} == {8, 6}
