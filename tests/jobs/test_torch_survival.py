"""torch.distributed.shrink_group over the backend "hpccoll": dead ranks under Open MPI, and ranks that live."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.launch import run_script
from tests.jobs.surviving_training import SurvivalLauncher

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="this torch has no shrink_group")

PROGRAM = Path(__file__).parents[2] / "docs" / "programs" / "surviving_ddp.py"


def run_surviving(launcher: SurvivalLauncher, ranks: int, words: list[str], fault: str) -> str:
    """Run Python on some ranks with ULFM, one of which dies, and return its output."""
    mpirun, python = (str(launcher.folder / name) for name in ("mpirun", "python"))
    command = [mpirun, "--with-ft", "ulfm", "-n", str(ranks), python, *words]
    return launcher.execute(command, HPCCOLL_FAULT=fault).stdout


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.full)])  # rank 0 has torch's store
def test_the_program_of_the_page_continues_after_a_death(launcher, rank):
    output = run_surviving(launcher, 3, [str(PROGRAM)], f"kill:rank={rank},call=40")
    assert output.splitlines() == ["2 ranks, loss 0.000"] * 2


GROUP = """
import torch
import torch.distributed as dist
from hpccoll.torch import find_lost_ranks

dist.init_process_group("hpccoll")
group = dist.new_group([0, 2, 3])
rank, x = dist.get_rank(), torch.ones(3)
if rank != 1:
    try:
        while True:
            dist.all_reduce(x, group=group)
    except dist.DistBackendError:
        lost = find_lost_ranks(group)
        assert lost == [1], lost
        try:
            dist.shrink_group([0 if rank == 3 else 2], group)
            raise AssertionError("a living rank was excluded")
        except (RuntimeError, ValueError) as error:
            assert "live" in str(error), error
        group = dist.shrink_group(lost, group)
    x = torch.full((2,), float(rank))
    dist.all_reduce(x, group=group)
    rank, size, last = dist.get_rank(group), dist.get_world_size(group), dist.get_global_rank(group, 1)
    print(f"{rank} {size} {x.tolist()} {last}\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_a_group_of_some_ranks_shrinks(launcher):
    output = run_surviving(launcher, 4, ["-c", GROUP], "kill:rank=2,call=20")
    assert sorted(output.splitlines()) == ["0 2 [3.0, 3.0] 3", "1 2 [3.0, 3.0] 3"]


LIVING = """
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hpccoll")
rank, world = dist.get_rank(), dist.group.WORLD
world.monitored_barrier()
if rank != 1:
    group = dist.shrink_group([1])
    assert group == dist.group.WORLD
    assert type(group) is type(world)
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    again = dist.new_group([0, 1])
    y = torch.ones(1)
    dist.all_reduce(y, group=again)
    if dist.get_rank() == 1:
        try:
            group.monitored_barrier(timedelta(seconds=0.1))
            raise AssertionError("rank 0 has not called monitored_barrier")
        except dist.DistBackendError:
            pass
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.full((1, 1), float(rank))).backward()
    gradient, name = model.module.weight.grad.item(), model._get_ddp_logging_data()["backend_name"]
    sent = dist.isend(x, 1 - dist.get_rank())
    sender = dist.recv(torch.zeros(2))
    sent.wait()
    results = [x.tolist(), y.tolist(), gradient, name, sender]
    print(f"{dist.get_rank()} {dist.get_world_size()} {results}\\n", end="", flush=True)
    dist.destroy_process_group()
"""


def test_a_living_rank_is_excluded():
    done = run_script(LIVING, 3)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "0 2 [[2.0, 2.0], [2.0], 1.0, 'hpccoll', 1]",
        "1 2 [[2.0, 2.0], [2.0], 1.0, 'hpccoll', 0]",
    ]
