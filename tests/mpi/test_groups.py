"""Groups of ranks: in any order, several at once, nested, and beside the world."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import list_algorithm_names
from hpccoll.errors import UsageError
from hpccoll.plan import Operation


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def test_ranks_of_a_group_have_the_order_that_was_given(hpc):
    order = [*range(1, hpc.size, 2), *range(0, hpc.size, 2)][::-1]
    with hpc.new_group(order) as group:
        assert (group.size, group.rank) == (hpc.size, order.index(hpc.rank))
        assert group.all_gather(np.array([hpc.rank])).reshape(-1).tolist() == order
        for root in range(group.size):
            assert group.broadcast(np.array([hpc.rank]), root=root).tolist() == [order[root]]


@pytest.mark.needs_ranks(2)
def test_who_is_not_in_a_group_gets_none_before_the_members_have_come(hpc, comm):
    last = hpc.size - 1
    if hpc.rank == last:
        assert hpc.new_group(list(range(last))) is None
        comm.send("back already", 0)
        return
    if hpc.rank == 0:
        assert comm.recv(source=last) == "back already"
    with hpc.new_group(list(range(last))) as group:
        assert group.all_reduce(np.array([1])).tolist() == [last]


def test_only_members_need_to_ask_for_a_group(hpc):
    if hpc.rank == hpc.size - 1:
        with hpc.new_group([hpc.rank]) as alone:
            assert (alone.rank, alone.size) == (0, 1)


def test_disjoint_groups_work_at_the_same_time_and_beside_the_world(hpc):
    n, rank = hpc.size, hpc.rank
    colours = [list(range(c, n, 3)) for c in range(min(3, n))]
    made = [hpc.new_group(ranks) for ranks in colours]
    mine = next(group for group in made if group is not None)
    members = colours[rank % 3 if n >= 3 else rank]
    for turn in range(10):
        x, everyone = np.array([rank, turn]), np.array([rank, turn])
        for _ in range(rank % 3):  # each group makes as many calls as it likes
            mine.barrier()
        mine.all_reduce(x, algorithm=list_algorithm_names(Operation.ALL_REDUCE)[turn % 5])
        hpc.all_reduce(everyone)
        assert x.tolist() == [sum(members), turn * len(members)]
        assert everyone.tolist() == [n * (n - 1) // 2, turn * n]
    mine.close()


def test_every_operation_works_in_a_group_of_one(hpc):
    with hpc.new_group([hpc.rank]) as alone:
        x = np.arange(6.0)
        for operation in (alone.all_reduce, alone.reduce, alone.broadcast):
            assert operation(x).tolist() == list(range(6))
        assert alone.all_reduce(x, op="avg", async_op=True).wait().tolist() == list(range(6))
        assert alone.all_gather(x).shape == (1, 6)
        assert alone.gather(x).shape == (1, 6)
        assert alone.reduce_scatter(x[None]).tolist() == [list(range(6))]
        assert alone.scatter(x[None]).tolist() == [list(range(6))]
        assert alone.all_to_all(x[None]).tolist() == [list(range(6))]
        alone.barrier()


@pytest.mark.needs_ranks(3)
def test_groups_are_made_within_groups(hpc):
    outer = hpc.new_group(list(range(1, hpc.size)))
    if outer is None:
        return
    inner = outer.new_group([outer.size - 1, 0])  # ranks of the outer group
    if inner is not None:
        both = {1, hpc.size - 1}
        assert inner.size == len(both)
        assert inner.all_reduce(np.array([hpc.rank])).tolist() == [sum(both)]
        inner.close()
    assert outer.all_reduce(np.array([1])).tolist() == [outer.size]
    outer.close()


def test_overlapping_pairs_all_work(hpc):
    for pair in itertools.combinations(range(hpc.size), 2):
        group = hpc.new_group(list(pair))
        if group is not None:
            assert group.all_reduce(np.array([hpc.rank])).tolist() == [sum(pair)]
            group.close()


def test_closing_twice_does_no_harm_and_the_world_goes_on(hpc):
    group = hpc.new_group(list(range(hpc.size)))
    x = np.ones(3)
    for _ in range(3):
        group.all_reduce(x)
    group.close()
    group.close()
    y = np.ones(3)
    hpc.all_reduce(y)
    assert y.tolist() == [hpc.size] * 3


@pytest.mark.full_except_on(2)
def test_hundreds_of_groups_come_and_go(hpc):
    """MPI has a few thousand message spaces: they must be given back."""
    for _ in range(800 if hpc.size < 4 else 50):
        with hpc.new_group(list(range(hpc.size))) as group:
            assert group.size == hpc.size


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1], [99]])
def test_what_is_no_group_is_refused(hpc, ranks):
    with pytest.raises(UsageError, match="distinct ranks"):
        hpc.new_group(ranks)


@pytest.mark.mpi(min_size=2)
def test_an_intercommunicator_is_refused(comm):
    half = comm.Split(comm.rank % 2)
    joined = half.Create_intercomm(0, comm, 1 - comm.rank % 2, tag=3)
    with pytest.raises(UsageError, match="joins two groups of ranks"):
        hpccoll.Communicator(joined)
    joined.Free()
    half.Free()


def test_a_rank_with_an_undefined_color_is_in_no_group(hpc):
    for none in (None, MPI.UNDEFINED):
        group = hpc.split(none if hpc.rank == 0 else 1)
        assert (group is None) == (hpc.rank == 0)
        if group is not None:
            assert group.size == hpc.size - 1
            group.close()


def test_a_color_that_is_no_integer_is_an_error_on_all_ranks(hpc):
    with pytest.raises(UsageError, match="split takes integers as color and key"):
        hpc.split(np.arange(2) if hpc.rank == 0 else 1)
