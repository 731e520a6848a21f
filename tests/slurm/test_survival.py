"""`SURVIVE=1 sbatch slurm/train.sh`: training continues without dead ranks and nodes, or the job is requeued."""

from __future__ import annotations

import os

import pytest

from tests.jobs.surviving_training import SurvivalLauncher
from tests.requirements import skip_or_fail
from tests.slurm.batch import OTHER_VENV, ROOT, submit

pytestmark = pytest.mark.full


@pytest.fixture
def surviving(tmp_path):
    """The variables of a surviving job with Open MPI, which takes torch from this environment."""
    launcher = SurvivalLauncher.find(tmp_path)
    if launcher is None:
        skip_or_fail("HPCCOLL_OTHER_MPIRUN does not name the mpirun of an environment with Open MPI")
    torch = "" if launcher.torch is None else f"{os.pathsep}{launcher.torch}"
    return {"SURVIVE": "1", "HPCCOLL_VENV": str(OTHER_VENV), "PYTHONPATH": f"{ROOT}{torch}"}


def test_a_dead_rank_costs_this_rank_only(lab, tmp_path, surviving):
    words = ("zero1", "--width", "16", "--dtype", "float64", "--steps", "60")
    options, fault = ("--nodes=2", "--ntasks-per-node=2"), {"HPCCOLL_FAULT": "kill:rank=2,call=100"}
    job = submit(lab, tmp_path, "train.sh", *words, options=options, env=surviving | fault)
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    (recovery,) = job.records("train.jsonl", "train_recovery")
    assert (recovery["strategy"], recovery["lost_hosts"]) == ("dp=3", ["node2"])
    assert [step["step"] for step in job.records("train.jsonl", "train")] == list(range(1, 61))


def test_a_dead_node_costs_its_ranks_only(lab, tmp_path, surviving):
    words = ("zero1", "--width", "16", "--dtype", "float64", "--steps", "100")
    options = ("--nodes=3", "--ntasks-per-node=2", "--no-kill")
    job = submit(lab, tmp_path, "train.sh", *words, options=options, env=surviving)
    job.until(lambda: len(job.records("train.jsonl", "train")) > 2)
    lab.set_power("node2", on=False)  # ends the node's processes and its link without a notice
    assert job.ended() == ("COMPLETED", "0:0"), job.output
    (recovery,) = job.records("train.jsonl", "train_recovery")
    assert (recovery["strategy"], recovery["lost_hosts"]) == ("dp=4", ["node2", "node2"])
    assert [step["step"] for step in job.records("train.jsonl", "train")] == list(range(1, 101))
    assert "attempt 2" not in job.ending


def test_a_job_with_too_few_nodes_left_is_requeued(lab, tmp_path, surviving):
    words = ("tp=2", "--dtype", "float64", "--steps", "100000")
    options = ("--nodes=2", "--ntasks-per-node=1", "--no-kill")
    job = submit(lab, tmp_path, "train.sh", *words, options=options, env=surviving)
    job.until(lambda: len(job.records("train.jsonl", "train")) > 2)
    lab.set_power("node2", on=False)
    job.until(lambda: "attempt 2: began on node[3-4]" in job.ending)
    assert "training ended, because nodes failed: node2" in job.ending
    lab.run(["scancel", job.number])
