"""Less common uses of torch.distributed: dropped handles, short arguments, sparse and wrapped tensors, futures.

The expected results are those of torch's Gloo backend; the tests do not run Gloo.
"""

from __future__ import annotations

import time
from datetime import timedelta
from importlib.util import find_spec

import pytest

from tests.requirements import skip_or_fail

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.mpi(min_size=2),
]


@pytest.fixture
def total(dist):
    """The sum of 1 + rank over all ranks."""
    return sum(range(1, dist.get_world_size() + 1))


def test_joined_ranks_make_different_numbers_of_steps(dist, torch):
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
    with net.join(divide_by_initial_world_size=False):
        for _ in range(3 + 2 * dist.get_rank()):
            net(torch.ones(2, 5)).sum().backward()
    gathered = [torch.zeros(5, 5) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, net.module.weight.detach())
    assert all(torch.equal(gathered[0], weight) for weight in gathered)


def test_operations_whose_handles_were_dropped_are_complete_after_a_barrier(dist, torch, total):
    # A transposed tensor needs a copy back at the end.
    tensors = [torch.full((100, 50), 1.0 + dist.get_rank()).T for _ in range(16)]
    for x in tensors:
        dist.all_reduce(x, async_op=True)
    dist.barrier()
    assert all(bool((x == total).all()) for x in tensors)


def test_an_operation_with_a_dropped_handle_completes_without_further_calls(dist, torch, comm, total):
    x = torch.full((50, 40), 1.0 + dist.get_rank()).T
    dist.all_reduce(x, async_op=True)
    end = time.monotonic() + 20
    while not bool((x == total).all()) and time.monotonic() < end:
        time.sleep(0.01)
    assert bool((x == total).all())
    comm.Barrier()


def test_a_barrier_may_wait_for_a_dropped_operation_within_its_own_wait(dist, torch, comm, total):
    x = torch.full((40,), 1.0 + dist.get_rank())
    if dist.get_rank():
        comm.Barrier()
    work = dist.all_reduce(x, async_op=True)
    if dist.get_rank() == 0:
        comm.Barrier()
    if hasattr(work, "comm"):  # from 2.14, torch wraps the handle
        with work.comm._engine.state.wait("barrier"):
            work.wait_unrecorded()
    work.wait()
    assert x.tolist() == [total] * 40


def test_a_refused_operation_leaves_its_outputs_alone(dist, torch):
    outputs = [torch.full((2,), 5.0, dtype=torch.float64) for _ in range(dist.get_world_size())]
    with pytest.raises(Exception, match="float32"):
        dist.group.WORLD.allgather([outputs], [torch.ones(2)]).wait()
    assert all(out.tolist() == [5.0, 5.0] for out in outputs)


@pytest.mark.parametrize("async_op", [False, True])
def test_a_tensor_that_is_listed_twice_is_reduced_once(dist, torch, total, async_op):
    x = torch.tensor([1.0 + dist.get_rank()])
    work = dist.all_reduce_coalesced([x, x], async_op=async_op)
    if async_op:
        work.wait()
    assert x.item() == total


def test_results_of_functional_collectives_are_communicated(dist, torch):
    from torch.distributed._functional_collectives import all_reduce

    n = dist.get_world_size()
    x = all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    dist.all_reduce(x)
    assert x.tolist() == [n * n] * 2
    gathered = [torch.zeros(2) for _ in range(n)]
    dist.all_gather(gathered, all_reduce(torch.ones(2), "sum", dist.group.WORLD))
    assert all(each.tolist() == [n, n] for each in gathered)


def test_the_tensors_of_a_wrapper_are_reduced(dist, torch):
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.ones(2), torch.full((2,), 2.0))
    dist.all_reduce(x)
    n = dist.get_world_size()
    assert (x.a.tolist(), x.b.tolist()) == ([n] * 2, [2 * n] * 2)


def test_groups_take_the_short_forms_of_arguments(dist, torch):
    n, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    x = torch.full((2,), 1.0 + rank)
    group.allreduce([x]).wait()
    assert x.tolist() == [sum(range(1, n + 1))] * 2
    group.allreduce(x, op=dist.ReduceOp.MAX).wait()
    group.allreduce([x], dist.ReduceOp.MAX, timedelta(seconds=60)).wait()
    y = torch.tensor([float(rank)])
    group.broadcast(y, root=n - 1).wait()
    assert y.item() == n - 1
    group.allreduce([x, y]).wait()
    assert (x.tolist(), y.tolist()) == ([n * n * (n + 1) / 2] * 2, [n * (n - 1)])
    gathered = [torch.zeros(1) for _ in range(n)]
    group.allgather(gathered, torch.tensor([float(rank)])).wait()
    assert [each.item() for each in gathered] == list(range(n))
    y.fill_(1)
    group.reduce(y, root=0).wait()
    assert y.item() == (n if rank == 0 else 1)
    group.gather(gathered if rank == 0 else [], torch.tensor([-1.0 - rank]), root=0).wait()
    assert rank or [each.item() for each in gathered] == [-1.0 - at for at in range(n)]
    group.scatter(y, [torch.tensor([float(at)]) for at in range(n)] if rank == 0 else [], root=0).wait()
    assert y.item() == rank
    group.reduce_scatter(y, list(torch.ones(n, 1))).wait()
    assert y.item() == n
    group.barrier().wait()


def test_a_wrong_short_argument_is_refused(dist, torch):
    with pytest.raises(TypeError, match="root"):
        dist.group.WORLD.allreduce(torch.ones(1), root=0)


def test_sparse_tensors_are_added(dist, torch):
    n, rank = dist.get_world_size(), dist.get_rank()
    dense = torch.zeros(n + 1, 3)
    dense[rank] = dense[n] = 1.0 + rank
    x = dense.to_sparse(1)
    dist.all_reduce(x)
    expected = torch.stack([*(torch.full((3,), 1.0 + at) for at in range(n)), torch.full((3,), n * (n + 1) / 2.0)])
    assert torch.equal(x.to_dense(), expected)
    empty = torch.zeros(2, 2).to_sparse()
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    with pytest.raises(ValueError, match="only adds"):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)


def test_sparse_gradients_are_averaged_by_ddp(dist, torch):
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(6, 2, sparse=True))
    net(torch.tensor([dist.get_rank(), 5])).sum().backward()
    gradient = net.module.weight.grad.to_dense()
    n = dist.get_world_size()
    assert gradient[:, 0].tolist() == pytest.approx([1 / n if at < n else 0.0 for at in range(5)] + [1.0])


def test_a_group_is_its_own_backend_and_counts_operations(dist, torch):
    group = dist.group.WORLD
    assert group._get_backend(torch.device("cpu")) is not None
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    assert group._get_sequence_number_for_group() == before + 1


def test_a_sharded_tensor_is_gathered(dist, torch):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    if torch.backends.cuda.is_built() and not torch.cuda.is_available():
        skip_or_fail("torch gathers a ShardedTensor on a GPU, which this machine lacks")
    n, rank = dist.get_world_size(), dist.get_rank()
    x = sharded_tensor.ones(ChunkShardingSpec(0, [f"rank:{at}/cpu" for at in range(n)]), 2 * n, 3)
    out = torch.zeros(2 * n, 3) if rank == 0 else None
    x.gather(0, out)
    assert out is None or bool((out == 1).all())


def test_futures_give_a_list_of_tensors(dist, torch):
    n, rank = dist.get_world_size(), dist.get_rank()
    gathered = [torch.zeros(1) for _ in range(n)]
    value = dist.all_gather(gathered, torch.tensor([float(rank)]), async_op=True).get_future().wait()
    assert [each.item() for each in value] == list(range(n))
    work = dist.gather(torch.ones(1), gathered if rank == 0 else None, async_op=True)
    assert len(work.get_future().wait()) == (n if rank == 0 else 0)


def test_wrong_arguments_of_an_asynchronous_operation_are_refused_at_the_call(dist, torch):
    with pytest.raises(ValueError, match="bitwise"):
        dist.all_reduce(torch.ones(2, dtype=torch.float64), op=dist.ReduceOp.BAND, async_op=True)
    dist.barrier()


def test_a_timeout_error_contains_the_word_timeout(dist, torch):
    group = dist.new_group(timeout=timedelta(seconds=3))
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="timeout"):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()


def test_the_profiler_of_torch_shows_operations(dist, torch):
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0, async_op=True).wait()
    names = {event.key for event in profile.key_averages()}
    assert {"hpccoll:all_reduce", "hpccoll:broadcast"} <= names
