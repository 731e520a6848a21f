"""The backend "hpccoll" of torch.distributed from 2.14: composed backends, splits, torch's hooks."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from packaging.version import Version

from tests.requirements import TORCH, skip_or_fail

pytestmark = [
    pytest.mark.skipif(Version("2.14") > TORCH, reason="torch 2.14 is the first to take backends of Python"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.fixture(params=["hpccoll", "cpu:hpccoll,cuda:gloo"])
def dist(comm, request) -> Any:
    """torch.distributed with a group of all ranks by each name of backends; made and destroyed for each test."""
    import torch

    before = dict(os.environ)
    from hpccoll.torch.creation import takes_python_backends  # its package registers the backend

    assert takes_python_backends()
    torch.distributed.init_process_group(request.param)
    yield torch.distributed
    torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def get_backend(dist: Any) -> Any:
    import torch

    return dist.group.WORLD._get_backend(torch.device("cpu"))


def is_composed(dist: Any) -> bool:
    """Whether the group has several backends."""
    return type(dist.group.WORLD) is dist.ProcessGroup


def test_torch_composes_backends(dist):
    from hpccoll.torch.backend import HpccollBackend
    from hpccoll.torch.message_group import MessageGroup

    assert is_composed(dist) or type(dist.group.WORLD) is MessageGroup
    assert is_composed(dist) == ("," in dist.get_backend())
    assert isinstance(get_backend(dist), HpccollBackend)
    assert get_backend(dist).name() == "hpccoll"


def test_every_question_for_a_feature_has_an_answer(dist):
    backend = get_backend(dist)
    answers = {name: getattr(backend, name) for name in dir(backend) if "supports_" in name}
    supported = {name for name, answer in answers.items() if answer is True}
    assert supported == {"supports_splitting", "supports_shrinking"}


@pytest.mark.mpi(min_size=2)
def test_messages_of_a_single_backend_know_their_sender_and_their_end(dist):
    import torch

    x, n, rank = torch.zeros(3), dist.get_world_size(), dist.get_rank()
    sent = dist.isend(torch.full((3,), float(rank)), (rank + 1) % n)
    if is_composed(dist):
        with pytest.raises(RuntimeError, match="sourceRank"):
            dist.recv(x)
    else:
        assert dist.recv(x) == (rank - 1) % n
    sent.wait()
    assert sent.is_completed() == (not is_composed(dist))
    assert x.tolist() == [float((rank - 1) % n)] * 3


def test_torch_knows_the_name_of_a_single_backend(dist):
    import torch

    if not is_composed(dist):
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        assert net._get_ddp_logging_data()["backend_name"] == "hpccoll"


def split(dist: Any, ranks: list[list[int]]) -> Any:
    try:
        return dist.split_group(None, ranks)
    except RuntimeError as error:
        if "No device associated" in str(error):
            skip_or_fail("this torch splits groups of CUDA devices only")
        raise


def test_a_split_has_its_members_in_their_order(dist):
    import torch

    n = dist.get_world_size()
    first, rest = list(range(n))[:2][::-1], list(range(n))[2:]
    group = split(dist, [each for each in (first, rest) if each])
    mine = first if dist.get_rank() in first else rest
    x = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(x, group=group)
    assert x.item() == sum(rank + 1 for rank in mine)
    assert dist.get_group_rank(group, dist.get_rank()) == mine.index(dist.get_rank())


def test_a_rank_outside_of_a_split_is_told_the_remedy(dist):
    if dist.get_world_size() > 1 and dist.get_rank() == dist.get_world_size() - 1:
        with pytest.raises(Exception, match="new_group"):
            split(dist, [[0]])


def test_monitored_barrier(dist):
    for _ in range(3):
        dist.monitored_barrier()


@pytest.mark.mpi(min_size=2)
def test_a_monitored_barrier_that_may_take_no_time_fails_at_once(dist, comm):
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 0 timed out in monitoredBarrier"):
            dist.group.WORLD.monitored_barrier(timedelta(0))
    comm.Barrier()


def test_collectives_are_counted(dist):
    import torch

    before = get_backend(dist)._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(2))
    dist.barrier()
    assert get_backend(dist)._get_sequence_number_for_group() == before + 2


def test_the_flight_recorder_of_torch_names_the_operations(dist):
    import pickle

    import torch

    if not getattr(dist.distributed_c10d._world, "pg_flight_recorder_hooks", None):
        skip_or_fail("this torch attaches no flight recorder to a backend of Python")
    dist.all_reduce(torch.ones(2))
    entries = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(backend="hpccoll"))["entries"]
    assert entries[-1]["profiling_name"] == "hpccoll:all_reduce"
    assert entries[-1]["retired"]
