"""Torch's own tools observe the operations of the backend as they observe Gloo's."""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.mpi(min_size=2),
]


def run_operations(dist, torch, group):
    """Run each operation of torch.distributed that Gloo has, and a step of DDP."""
    from torch.distributed._functional_collectives import all_reduce

    n, rank = dist.get_world_size(), dist.get_rank()
    x, block, blocks = torch.ones(2 * n), torch.ones(2), list(torch.ones(n, 2))
    dist.all_reduce(x, group=group)
    dist.all_reduce(x, group=group, async_op=True).wait()
    dist.all_reduce_coalesced([x, block], group=group)
    dist.broadcast(x, 0, group=group)
    dist.reduce(x, 0, group=group)
    dist.all_gather_into_tensor(x, block, group=group)
    dist.all_gather(blocks, block, group=group)
    dist.reduce_scatter_tensor(block, x, group=group)
    dist.reduce_scatter(block, blocks, group=group)
    dist.all_to_all_single(torch.empty(2 * n), x, group=group)
    dist.gather(block, blocks if rank == 0 else None, group=group)
    dist.scatter(block, blocks if rank == 0 else None, group=group)
    dist.barrier(group=group)
    if rank < 2:
        (dist.recv if rank else dist.send)(x, 1 - rank, group=group)
    assert all_reduce(torch.ones(2), "sum", group).tolist() == [n, n]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5), process_group=group)
    net(torch.ones(2, 5)).sum().backward()


def test_comm_debug_mode_counts_the_same_operations_as_over_gloo(dist, torch):
    from torch.distributed.tensor.debug import CommDebugMode

    counts = []
    gloo = dist.new_group(backend="gloo")
    for group in (dist.group.WORLD, gloo):
        with CommDebugMode() as mode:
            run_operations(dist, torch, group)
        counts.append(dict(mode.get_comm_counts()))
    dist.destroy_process_group(gloo)
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 15


def test_results_are_the_same_while_a_dispatch_mode_is_active(dist, torch):
    from torch.distributed.tensor.debug import CommDebugMode

    n, rank = dist.get_world_size(), dist.get_rank()
    x, gathered = torch.full((2, 3), 1.0 + rank).T, [torch.zeros(3, 2) for _ in range(n)]
    with CommDebugMode():
        dist.all_gather(gathered, x)
        dist.all_reduce(x)
    assert [each[0, 0].item() for each in gathered] == [1.0 + at for at in range(n)]
    assert bool((x == n * (n + 1) / 2).all())


def test_the_barrier_of_a_group_names_missing_ranks_in_the_words_of_gloo(dist):
    group = dist.new_group()
    group.monitored_barrier(timedelta(seconds=60))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"Rank 0 timed out in monitoredBarrier: Rank 1 failed to pass"):
            group.monitored_barrier(timedelta(0))
    dist.barrier()
    dist.destroy_process_group(group)
