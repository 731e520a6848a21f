"""Handles of operations of torch.distributed over hpccoll: futures, errors, and the lives of tensors."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.fixture
def neighbours(dist) -> tuple[int, int]:
    """The ranks before and after this one, in a ring."""
    return (dist.get_rank() - 1) % dist.get_world_size(), (dist.get_rank() + 1) % dist.get_world_size()


def test_a_future_is_returned_before_the_other_ranks_start(dist, torch, comm):
    x = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        assert dist.get_world_size() == 1 or not (future.done() or work.is_completed())
        comm.Barrier()
        assert future.wait()[0] is not None
        assert work.is_success()
    else:
        comm.Barrier()
        dist.all_reduce(x)
    assert x.tolist() == [dist.get_world_size()] * 3


def test_a_rank_may_send_after_it_asked_for_the_future_of_a_receive(dist, torch, neighbours):
    out = torch.zeros(2)
    future = dist.irecv(out, neighbours[0]).get_future()
    dist.isend(torch.full((2,), float(dist.get_rank())), neighbours[1]).wait()
    future.wait()
    assert out.tolist() == [float(neighbours[0])] * 2


@pytest.mark.mpi(min_size=2)  # torch allows no messages of a rank to itself
def test_a_receive_from_any_rank_tells_the_sender(dist, torch, neighbours):
    x = torch.zeros(2)
    sent = dist.isend(torch.full((2,), float(dist.get_rank())), neighbours[1])
    assert dist.recv(x) == neighbours[0]
    sent.wait()
    assert x.tolist() == [float(neighbours[0])] * 2


def test_groups_are_used_in_different_orders(dist, torch):
    groups = [dist.new_group(), dist.new_group()]
    tensors = [torch.full((1000,), 1.0), torch.full((1000,), 2.0)]
    order = (0, 1) if dist.get_rank() % 2 else (1, 0)
    futures = [dist.all_reduce(tensors[at], group=groups[at], async_op=True).get_future() for at in order]
    torch.futures.wait_all(futures)
    assert [x[0].item() for x in tensors] == [dist.get_world_size(), 2.0 * dist.get_world_size()]
    for group in groups:
        dist.destroy_process_group(group)


def test_continuations_start_collectives_in_the_same_order_on_all_ranks(dist, torch, comm):
    n, rank = dist.get_world_size(), dist.get_rank()

    def reduce_again(done: Any) -> Any:
        x = done.value()[0] * 2
        return dist.all_reduce(x, async_op=True).get_future().wait()[0]

    futures = []
    for number in range(6):
        if rank == 0:
            threading.Event().wait(0.02)  # the other ranks leave their operations to the thread meanwhile
        work = dist.all_reduce(torch.full((50,), float(number)), async_op=True)
        futures.append(work.get_future().then(reduce_again).then(lambda done: done.value() + 1))
    for number, future in enumerate(futures):
        assert future.wait()[0].item() == number * n * 2 * n + 1
    comm.Barrier()


def test_a_failed_operation_fails_its_future(dist, torch, neighbours):
    out = torch.zeros(3)
    received, sent = dist.irecv(out, neighbours[0]), dist.isend(torch.ones(2), neighbours[1])
    with pytest.raises(Exception, match="as large as the one that is sent"):
        received.get_future().wait()
    sent.wait()
    assert received.is_completed()
    assert not received.is_success()
    assert "as large as" in str(received.exception())
    with pytest.raises(dist.DistBackendError, match="recv on rank"):
        received.wait()


def test_a_future_that_takes_too_long_fails(dist, torch, neighbours, comm):
    from tests.torch_groups import make_hasty_group

    group, out = make_hasty_group(timedelta(seconds=0.05)), torch.zeros(2)
    work = dist.irecv(out, neighbours[0], group=group)
    with pytest.raises(Exception, match="Timed out waiting"):
        work.get_future().wait()
    comm.Barrier()
    sent = dist.isend(torch.ones(2), neighbours[1], group=group)
    work.wait(timedelta(seconds=20))
    sent.wait(timedelta(seconds=20))
    assert out.tolist() == [1.0, 1.0]


def test_tensors_live_until_their_operations_are_complete(dist, torch):
    n, results, works = dist.get_world_size(), [], []
    for number in range(20):
        results.append((torch.full((2, 600), float(number)), [torch.zeros(50) for _ in range(n)]))
        works.append(dist.all_reduce(results[-1][0].t()[1:2], async_op=True))  # a view that is communicated as a copy
        works.append(dist.all_gather(results[-1][1], torch.full((50,), number + dist.get_rank() + 0.0), async_op=True))
    gc.collect()
    junk = [torch.full((600,), -1.0) for _ in range(200)]
    for work in reversed(works):
        work.wait()
    for number, (whole, parts) in enumerate(results):
        assert whole.sum().item() == number * (1200 - 2) + number * 2 * n
        assert [each[0].item() for each in parts] == [number + rank for rank in range(n)]
    assert len(junk) == 200


def test_operations_whose_handles_are_dropped_are_carried_out(dist, torch):
    from hpccoll.runtime.progress import get_progress

    x = torch.ones(1000)
    dist.all_reduce(x, async_op=True)
    gc.collect()
    while x[0].item() != dist.get_world_size():
        get_progress().advance()


@pytest.mark.needs_ranks(2)
def test_messages_may_be_exchanged_while_a_future_is_incomplete(dist, torch):
    x, y, rank = torch.ones(2), torch.ones(3), dist.get_rank()
    if rank == 1:  # the other ranks wait for this rank's part of the all_reduce
        dist.irecv(y, 0).wait()
        dist.isend(y, 0).wait()
    future = dist.all_reduce(x, async_op=True).get_future()
    if rank == 0:
        dist.isend(y, 1).wait()
        dist.irecv(y, 1).wait()
    future.wait()
    assert x.tolist() == [dist.get_world_size()] * 2
