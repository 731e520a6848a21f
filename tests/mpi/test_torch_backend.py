"""The backend "hpccoll" of torch.distributed under mpirun: its operations, and drawn programs against gloo."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]
PROGRAMS, OPERATIONS = 6, 25


def test_the_job_tells_torch_rank_and_size(dist, comm):
    assert (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.size)
    assert dist.get_backend() == "hpccoll"
    assert os.environ["RANK"] == str(comm.rank)


def test_drawn_programs_give_gloo_s_results(dist):
    from tests.mpi import torch_programs

    groups = torch_programs.make_groups(random.Random(7))
    for seed in range(PROGRAMS):
        torch_programs.run_program(seed, groups, OPERATIONS)


def test_elements_of_unknown_type_move_as_bytes(dist, torch):
    x = torch.tensor([1.5, -2.0, 0.25]).to(torch.float8_e4m3fn)
    out = torch.zeros(3 * dist.get_world_size(), dtype=torch.float8_e4m3fn)
    dist.all_gather_into_tensor(out, x)
    assert out.float().reshape(-1, 3).tolist() == [[1.5, -2.0, 0.25]] * dist.get_world_size()


def test_views_that_are_not_contiguous_are_reduced_in_place(dist, torch):
    n = dist.get_world_size()
    whole = torch.ones(4, 6)
    dist.all_reduce(whole.t()[1:3])
    expected = torch.ones(4, 6)
    expected[:, 1:3] = n
    assert torch.equal(whole, expected)


def test_premul_sum_and_avg(dist, torch):
    n = dist.get_world_size()
    x = torch.full((3,), 2.0)
    dist.all_reduce(x, torch.distributed._make_nccl_premul_sum(0.5))
    assert x.tolist() == [float(n)] * 3
    y = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(y, dist.ReduceOp.AVG)
    assert y.tolist() == [(n - 1) / 2] * 2


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("count", [16_383, 16_384, 100_000])  # less than 64 KiB, 64 KiB and more
def test_scatter_and_gather_of_lists(dist, torch, count, asynchronous):
    me, n = dist.get_rank(), dist.get_world_size()
    root, works = n - 1, []
    expected = [torch.arange(count, dtype=torch.float32) + 10 * rank for rank in range(n)]
    rows = torch.stack([each + 1 for each in expected], dim=1)  # each column is a tensor that is not contiguous
    listed = list(rows.unbind(1)) if me == root else None
    scattered, strided = torch.zeros(count), torch.zeros(count, 2)
    works.append(dist.scatter(scattered, listed, root, async_op=asynchronous))
    works.append(dist.scatter(strided[:, 1], listed, root, async_op=asynchronous))
    wanted = [torch.zeros(count, 2)[:, 0] for _ in range(n)] if me == root else None
    works.append(dist.gather(expected[me], wanted, root, async_op=asynchronous))
    for work in works:
        if work is not None:
            work.wait()
    assert torch.equal(scattered, expected[me] + 1)
    assert torch.equal(strided, torch.stack([torch.zeros(count), expected[me] + 1], dim=1))
    assert not wanted or all(map(torch.equal, wanted, expected))


def test_scatter_and_gather_of_tensors_that_share_memory(dist, torch):
    me, n, count = dist.get_rank(), dist.get_world_size(), 20_000
    blocks = [torch.full((count,), float(rank)) for rank in range(n)]
    out = blocks[-1] if me == 0 else torch.zeros(count)  # the root receives its block where that of another rank was
    dist.scatter(out, blocks if me == 0 else None, 0)
    assert out.unique().tolist() == [me]
    x = torch.full((count,), float(me))
    wanted = [x, *(torch.zeros(count) for _ in range(n - 1))][::-1] if me == 0 else None
    dist.gather(x, wanted, 0)  # the root's input is the memory of the last output
    assert not wanted or [each.unique().tolist() for each in wanted] == [[rank] for rank in range(n)]


def test_lists_of_the_wrong_size_are_refused(dist, torch):
    me, n = dist.get_rank(), dist.get_world_size()
    blocks, longer = [torch.zeros(20_000)] * (n - 1), torch.zeros(20_001)
    group = [dist.new_group([rank]) for rank in range(n)][me]
    for listed in ([longer], [torch.zeros(1)], [*blocks[:1] * 2, longer]):
        with pytest.raises(Exception, match="scatter: the list has tensors of"):
            dist.scatter(torch.zeros(20_000), listed, me, group=group)
        with pytest.raises(Exception, match="gather: the list has tensors of"):
            dist.gather(torch.zeros(20_000), listed, me, group=group)


@pytest.mark.needs_ranks(2)
def test_the_tag_of_lists_is_refused_in_messages(dist, torch):
    for call in (dist.isend, dist.irecv):
        with pytest.raises(Exception, match="tag 32767 is not between 0 and 32766"):
            call(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size(), tag=32767)


@pytest.mark.needs_ranks(2)
def test_a_wait_that_takes_too_long_raises(dist, torch, comm):
    x = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(dist.DistBackendError, match="Timed out waiting"):
            work.wait(timedelta(seconds=0.05))
        comm.Barrier()
        work.wait()
    else:
        comm.Barrier()
        dist.all_reduce(x)
    assert x.tolist() == [dist.get_world_size()] * 3


def test_sparse_tensors_are_refused_with_a_remedy(dist, torch):
    with pytest.raises(Exception, match=r"to_dense|SparseCPU"):
        dist.all_gather([torch.ones(2)] * dist.get_world_size(), torch.eye(2).to_sparse())


def test_data_parallel_gradients_are_those_of_one_process(dist, torch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Tanh(), torch.nn.Linear(11, 3)).double()
    alone = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    inputs = torch.randn(dist.get_world_size(), 5, 7, dtype=torch.float64)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
    parallel(inputs[dist.get_rank()]).square().mean().backward()
    names = [name for name, _ in model.named_parameters()]
    outputs = torch.func.functional_call(model, dict(zip(names, alone, strict=True)), inputs)
    outputs.square().mean().backward()
    for parameter, expected in zip(model.parameters(), alone, strict=True):
        assert torch.allclose(parameter.grad, expected.grad, rtol=1e-12, atol=1e-14)
