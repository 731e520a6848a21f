"""Cartesian communicators: coordinates and shifts as mpi4py's, exchanges with neighbors, borders and arguments."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BufferError, UsageError


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.mark.parametrize("periods", [False, True, [True, False]])
def test_coordinates_and_shifts_are_those_of_mpi(hpc, periods):
    dims = MPI.Compute_dims(hpc.size, 2)
    wraps = periods if isinstance(periods, list) else [periods] * 2
    expected = hpc.mpi.Create_cart(dims, wraps)
    with hpc.cart(2, periods) as grid:
        assert grid.dims == tuple(dims)
        assert grid.coords == tuple(expected.Get_coords(grid.rank))
        for dim in (0, 1):
            for step in (1, -1, 2):
                assert grid.shift(dim, step) == expected.Shift(dim, step)
        assert [grid.get_rank(grid.get_coords(rank)) for rank in range(grid.size)] == list(range(grid.size))
    expected.Free()


@pytest.mark.parametrize("periods", [False, True])
def test_neighbors_get_the_blocks_that_face_them(hpc, periods):
    with hpc.cart([hpc.size, 1], periods) as grid:
        x = np.array([[10 * grid.rank + i] * 3 for i in range(4)], np.int32)  # block i goes to neighbor i
        received = grid.neighbor_all_to_all(x, out=np.full((4, 3), -7, np.int32))
        gathered = grid.neighbor_all_gather(np.full(2, grid.rank), out=np.full((4, 2), -7))
        for i, rank in enumerate(grid.neighbors):
            is_missing = rank == hpccoll.PROC_NULL
            assert received[i].tolist() == [-7 if is_missing else 10 * rank + (i ^ 1)] * 3
            assert gathered[i].tolist() == [-7 if is_missing else rank] * 2


def test_new_arrays_have_zeros_beyond_the_border(hpc):
    with hpc.cart(1) as line:
        rows = line.neighbor_all_gather(np.ones(5))
        assert rows.sum(axis=1).tolist() == [5 * (rank != hpccoll.PROC_NULL) for rank in line.neighbors]


def test_a_halo_exchange_on_torch_tensors(hpc):
    torch = pytest.importorskip("torch")
    with hpc.cart(1, periods=True) as ring:
        rows = ring.neighbor_all_to_all(torch.full((2, 3), float(ring.rank)))
        assert rows[:, 0].tolist() == [float(rank) for rank in ring.neighbors]


def test_ranks_outside_the_grid_get_none(hpc):
    grid = hpc.cart([1, 1])
    assert (grid is None) == (hpc.rank > 0)
    if grid is not None:
        assert grid.neighbors == (hpccoll.PROC_NULL,) * 4
        assert grid.all_reduce(np.ones(1)) == 1
        grid.close()


def test_receives_of_users_take_no_messages_of_neighbors(hpc):
    with hpc.cart(1, periods=True) as ring:
        left, right = ring.shift(0)
        mine = ring.irecv(np.empty(1))  # from any rank
        ring.neighbor_all_gather(np.zeros(1))
        ring.isend(np.array([5.0]), right).wait()
        assert mine.wait() == 5
        assert mine.source == left


def test_groups_of_a_grid_are_no_grids(hpc):
    with hpc.cart(1) as line, line.split(line.rank) as alone:
        assert type(alone) is hpccoll.Communicator


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda hpc: hpc.cart([hpc.size + 1]), "needs . ranks"),
        (lambda hpc: hpc.cart([0, hpc.size, -1]), "at least 0"),
        (lambda hpc: hpc.cart([]), "1 to 32 dims"),
        (lambda hpc: hpc.cart(2, [True]), "one value for each of the 2 dims"),
        (lambda hpc: hpc.cart([7 * hpc.size, 0]), "needs"),
    ],
)
def test_wrong_grids_are_refused_on_all_ranks(hpc, make, words):
    with pytest.raises(UsageError, match=words):
        make(hpc)


def test_wrong_arguments_of_grids_are_refused(hpc):
    with hpc.cart(1, periods=True) as ring:
        with pytest.raises(UsageError, match=r"dim 1 is not a dim of 0\.\.0"):
            ring.shift(1)
        with pytest.raises(UsageError, match="one number for each of the 1 dims"):
            ring.get_rank([0, 0])
        with pytest.raises(BufferError, match="its first dim must be 2"):
            ring.neighbor_all_to_all(np.ones(3))
        with pytest.raises(BufferError, match="out is float64 of shape"):
            ring.neighbor_all_gather(np.ones(3), out=np.ones(6))
