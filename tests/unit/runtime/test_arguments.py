"""Arguments of collectives: input arrays, output arrays, and the size of a block."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.errors import BufferError
from hpccoll.plan.operation import Operation
from hpccoll.runtime.arguments import check_call, empty_like

N, RANK, ROOT = 4, 2, 1


def ones(*extents: int) -> np.ndarray:
    """Return an array of ones of float32."""
    return np.ones(extents, np.float32)


@pytest.mark.parametrize(
    ("operation", "x", "count", "out"),
    [
        (Operation.ALL_REDUCE, (3, 5), 15, (3, 5)),
        (Operation.ALL_GATHER, (3, 5), 15, (4, 3, 5)),
        (Operation.ALL_GATHER, (), 1, (4,)),
        (Operation.REDUCE_SCATTER, (4, 5), 5, (1, 5)),
        (Operation.REDUCE_SCATTER, (8, 5), 10, (2, 5)),
        (Operation.REDUCE_SCATTER, (4,), 1, (1,)),
        (Operation.REDUCE_SCATTER, (0, 5), 0, (0, 5)),
        (Operation.ALL_TO_ALL, (8, 5), 10, (8, 5)),
    ],
)
def test_every_rank_gets_what_its_input_says(operation, x, count, out):
    array = ones(*x)
    shaped = check_call(operation, array, None, RANK, N, ROOT)
    assert shaped.count == count
    assert shaped.value.shape == out
    assert shaped.value.dtype == np.float32
    assert (shaped.value is array) is (operation is Operation.ALL_REDUCE)
    given = ones(*out)
    shaped = check_call(operation, array, given, RANK, N, ROOT)
    assert shaped.result is not None
    assert shaped.value is given
    assert shaped.result.flat.size == given.size


@pytest.mark.parametrize("rank", [ROOT, RANK])
def test_a_broadcast_reads_at_the_root_and_writes_elsewhere(rank):
    x = ones(3)
    shaped = check_call(Operation.BROADCAST, x, None, rank, N, ROOT)
    assert shaped.value is x
    assert (shaped.source is None) is (rank != ROOT)
    assert shaped.result is not None
    assert shaped.result.address == x.__array_interface__["data"][0]


@pytest.mark.parametrize("rank", [ROOT, RANK])
@pytest.mark.parametrize("given", [True, False])
def test_a_reduce_writes_at_the_root_alone(rank, given):
    x, out = ones(3), ones(3) if given else None
    shaped = check_call(Operation.REDUCE, x, out, rank, N, ROOT)
    assert (shaped.result is None) is (rank != ROOT)
    assert shaped.value is (out if given else x)


def test_where_nothing_is_written_the_array_may_be_read_only():
    x = ones(3)
    x.flags.writeable = False
    assert check_call(Operation.REDUCE, x, None, RANK, N, ROOT).result is None
    assert check_call(Operation.BROADCAST, x, None, ROOT, N, ROOT).source is not None
    with pytest.raises(BufferError, match="read-only"):
        check_call(Operation.BROADCAST, x, None, RANK, N, ROOT)
    with pytest.raises(BufferError, match="read-only"):
        check_call(Operation.REDUCE, x, None, ROOT, N, ROOT)


def test_a_gather_collects_at_the_root():
    at_root = check_call(Operation.GATHER, ones(3), None, ROOT, N, ROOT)
    assert at_root.value.shape == (4, 3)
    elsewhere = check_call(Operation.GATHER, ones(3), ones(4, 3), RANK, N, ROOT)
    assert (elsewhere.value, elsewhere.result, elsewhere.count) == (None, None, 3)


def test_a_scatter_hands_out_blocks_of_the_roots():
    at_root = check_call(Operation.SCATTER, ones(8, 5), None, ROOT, N, ROOT)
    assert (at_root.value.shape, at_root.count, at_root.shape) == ((2, 5), 10, (2, 5))
    assert check_call(Operation.SCATTER, ones(4, 5), None, ROOT, N, ROOT).value.shape == (1, 5)
    out = ones(2, 5)
    elsewhere = check_call(Operation.SCATTER, None, out, RANK, N, ROOT)
    assert elsewhere.value is out
    assert elsewhere.source is None
    assert elsewhere.shape == (2, 5)
    with pytest.raises(BufferError, match="rank 2 needs out"):
        check_call(Operation.SCATTER, None, None, RANK, N, ROOT)
    with pytest.raises(BufferError, match="the root, rank 1, passed no x"):
        check_call(Operation.SCATTER, None, out, ROOT, N, ROOT)


def test_a_barrier_moves_nothing():
    shaped = check_call(Operation.BARRIER, None, None, RANK, N, ROOT)
    assert (shaped.source, shaped.result, shaped.count, shaped.shape) == (None, None, 0, ())


@pytest.mark.parametrize("operation", [Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL])
@pytest.mark.parametrize("extents", [(), (5,), (3, 4)])
def test_blocks_that_do_not_divide_are_refused_with_shape_and_remedy(operation, extents):
    with pytest.raises(BufferError, match=r"first dim is not divisible by 4 ranks; pass one block per rank"):
        check_call(operation, ones(*extents), None, RANK, N, ROOT)


def test_outputs_that_do_not_fit_are_refused():
    with pytest.raises(BufferError, match=r"out has shape \(3, 3\) \(9 elements\), but x of shape \(3,\) gives 12"):
        check_call(Operation.ALL_GATHER, ones(3), ones(3, 3), RANK, N, ROOT)
    with pytest.raises(BufferError, match=r"x is float32 \(numpy\) and out is int32 \(numpy\)"):
        check_call(Operation.ALL_REDUCE, ones(3), np.ones(3, np.int32), RANK, N, ROOT)
    with pytest.raises(BufferError, match="broadcast works in place"):
        check_call(Operation.BROADCAST, ones(3), ones(3), RANK, N, ROOT)


def test_new_arrays_are_plain_and_contiguous():
    x = np.asfortranarray(np.ones((3, 4)))
    assert empty_like(x, (4, 3, 4)).flags.c_contiguous
    assert type(empty_like(np.ma.masked_array([1.0]), (2,))) is np.ndarray
