"""`init_process_group("hpccoll")` where an earlier one failed on some ranks, and without the other ranks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.jobs.launch import run_script

PROGRAM = """
import torch, torch.distributed as dist, hpccoll.torch
from torch.distributed.distributed_c10d import _process_group_name

from hpccoll.runtime import job

if job.get_world().rank:  # an attempt that failed on this rank has raised torch's counter of groups
    _process_group_name([], use_hashed_name=False)
dist.init_process_group("hpccoll")
x = torch.ones(2)
dist.all_reduce(x)
dist.all_reduce(x, group=dist.new_group())
print(x.tolist())
dist.destroy_process_group()
"""

LATE_RANK = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist, hpccoll.torch
from mpi4py import MPI

def init(seconds):
    options = {}
    if sys.argv[2:]:
        options = {"init_method": "file://" + sys.argv[2], "rank": MPI.COMM_WORLD.rank, "world_size": 2}
    dist.init_process_group("hpccoll", timeout=timedelta(seconds=seconds), **options)

if MPI.COMM_WORLD.rank == 0:
    try:
        init(0.5)
    except dist.DistBackendError as error:
        print(error)
    open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
init(60)
x = torch.ones(2)
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
"""
LATE_START = """
import os, time
from datetime import timedelta

if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    time.sleep(300)
import torch.distributed as dist, hpccoll.torch
dist.init_process_group("hpccoll", timeout=timedelta(seconds=0.5))
"""
MISSING_RANK = """
import os, runpy, sys, time
from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1:
    time.sleep(300)
sys.argv[1:] = ["--timeout", "0.5", "-m", "this"]
runpy.run_module("hpccoll.torch", run_name="__main__")
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]


def test_groups_are_made_although_the_counters_of_groups_differ():
    done = run_script(["-c", PROGRAM], 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[4.0, 4.0]") == 2


@pytest.mark.parametrize("store", ["env", "file"])
def test_a_missing_rank_ends_the_call_at_its_timeout_and_the_call_may_be_repeated(tmp_path, store):
    arguments = [str(tmp_path / "failed"), *([str(tmp_path / "store")] if store == "file" else [])]
    done = run_script(["-c", LATE_RANK, *arguments], 2)
    assert done.returncode == 0, done.stderr
    assert "init_process_group on rank 0: a rank has not arrived within a timeout of 0.5 s" in done.stdout
    assert done.stdout.count("[2.0, 2.0]") == 2


def test_a_rank_that_does_not_start_mpi_ends_the_job_at_the_timeout_of_the_others():
    done = run_script(["-c", LATE_START], 2)
    assert done.returncode
    assert "MPI_Init has not connected the ranks of the MPI job within a timeout of 0.5 s" in done.stderr


def test_the_launcher_module_ends_at_its_timeout_if_a_rank_is_missing():
    done = run_script(["-c", MISSING_RANK], 2)
    assert done.returncode
    message = (
        "python -m hpccoll.torch on rank 0: a rank has not arrived within a timeout of 0.5 s; start every rank with"
    )
    assert message in done.stderr
