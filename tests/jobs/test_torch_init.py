"""`init_process_group("hpccoll")` after an earlier one failed on some ranks only."""

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


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_groups_are_made_although_the_counters_of_groups_differ():
    done = run_script(["-c", PROGRAM], 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[4.0, 4.0]") == 2
