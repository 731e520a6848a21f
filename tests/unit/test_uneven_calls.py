"""Calls with counts (blocks of different sizes) on one rank: shapes, repeated calls, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hpccoll
from hpccoll.algorithms import list_algorithm_names
from hpccoll.errors import BufferError, MismatchError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.argument_check import EXCHANGED, ArgumentCheck
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.collective_call import CollectiveCall

BLOCKED = [operation for operation in Operation if operation.has_blocks]


@pytest.fixture(scope="module")
def hpc():
    with hpccoll.Communicator() as made:
        yield made


def matrix(rows=4):
    return np.arange(rows * 3.0).reshape(rows, 3)


def make_counts(operation, rows):
    return {"counts": rows, "out_counts": rows} if operation is Operation.ALL_TO_ALL else {"counts": rows}


@pytest.mark.parametrize("operation", BLOCKED)
@pytest.mark.parametrize("rows", [0, 4])
def test_results_have_as_many_rows_as_counts_state(hpc, operation, rows):
    for counts in ([rows], (rows,), np.array([rows]), iter([rows])):
        result = getattr(hpc, operation.value)(matrix(rows), **make_counts(operation, [*counts]))
        assert result.shape == (rows, 3)
        assert result.tolist() == matrix(rows).tolist()


@pytest.mark.parametrize("operation", BLOCKED)
def test_every_repetition_reads_the_arrays_again(hpc, operation):
    x, out = matrix(), np.empty((4, 3))
    for turn in range(5):
        x[:] = matrix() + turn
        assert getattr(hpc, operation.value)(x, out=out, **make_counts(operation, [4])) is out
        assert out.tolist() == x.tolist()
    run = hpc.prepare(operation, x, out=out, **make_counts(operation, [4]))
    x[:] = -1
    run()
    assert out.tolist() == x.tolist()


def test_a_call_with_other_counts_is_not_the_cached_one(hpc):
    x, out = matrix(), np.empty((4, 3))
    for _ in range(3):
        hpc.all_gather(x, counts=[4], out=out)
    with pytest.raises(BufferError, match="a first dim of 3"):
        hpc.all_gather(x, counts=[3], out=out)


def test_counts_may_be_a_generator(hpc):
    assert hpc.all_gather(matrix(), counts=(4 for _ in range(1))).shape == (4, 3)


@pytest.mark.parametrize(
    ("operation", "how", "told"),
    [
        ("all_gather", {"counts": [4, 4]}, "all_gather: counts=(4, 4) are not 1 integers of at least 0"),
        ("gather", {"counts": [-1]}, "gather: counts=(-1,) are not 1 integers"),
        ("scatter", {"counts": 4}, "scatter: counts=4 are not 1 integers"),
        ("reduce_scatter", {"counts": [4.0]}, "reduce_scatter: counts=[4.0] are not 1 integers"),
        ("all_gather", {"counts": [[4]]}, "all_gather: counts=[[4]] are not 1 integers"),
        ("all_to_all", {"counts": [4]}, "all_to_all: out_counts=None are not 1 integers"),
        ("all_to_all", {"out_counts": [4]}, "all_to_all: counts=None are not 1 integers"),
        ("all_gather", {"counts": [5]}, "all_gather: x has shape (4, 3), but counts requires a first dim of 5"),
        ("all_to_all", {"counts": [4], "out_counts": [4], "algorithm": "bruck"}, "with counts choose pairwise"),
        ("all_to_all", {"counts": [4], "out_counts": [4], "algorithm": "shared"}, "with counts choose pairwise"),
        ("all_gather", {"counts": [4], "out": np.empty((3, 3))}, "out has shape (3, 3) (9 elements)"),
    ],
)
def test_wrong_counts_are_explained(hpc, operation, how, told):
    for _ in range(2):
        with pytest.raises((UsageError, BufferError), match=re.escape(told)):
            getattr(hpc, operation)(matrix(), **how)


@pytest.mark.parametrize(
    ("operation", "how", "told"),
    [
        (Operation.ALL_REDUCE, {"counts": [4]}, "all_reduce has no blocks per rank; leave out counts"),
        (Operation.BARRIER, {"counts": [4]}, "barrier has no blocks per rank; leave out counts"),
        (Operation.ALL_TO_ALL, {"out_counts": [4]}, "all_to_all: counts=None are not 1 integers"),
        (Operation.GATHER, {"counts": [4], "out_counts": [4]}, "gather: only an all_to_all takes out_counts"),
    ],
)
def test_counts_that_a_prepared_operation_does_not_take_are_refused(hpc, operation, how, told):
    with pytest.raises(UsageError, match=re.escape(told)):
        hpc.prepare(operation, matrix(), out=matrix(), **how)


def check_on(operation: Operation, rank: int, x: object, counts: tuple[int, ...], out: object = None) -> CollectiveCall:
    taken = counts if operation is Operation.ALL_TO_ALL else None
    return check_call(operation, x, out, rank, len(counts), counts=(counts, taken))


def test_elements_are_rows_times_their_length():
    assert check_on(Operation.ALL_GATHER, 2, matrix(5), (2, 0, 5)).count == (6, 0, 15)
    assert check_on(Operation.SCATTER, 1, None, (2, 4, 5), matrix(4)).count == (6, 12, 15)
    assert check_on(Operation.ALL_TO_ALL, 0, matrix(7), (2, 0, 5)).count == (6, 0, 15, 6, 0, 15)


def test_a_block_in_place_lies_behind_the_blocks_of_lower_ranks():
    whole = matrix(7)
    for operation, x, out in (
        (Operation.ALL_GATHER, whole[2:6], whole),
        (Operation.REDUCE_SCATTER, whole, whole[2:6]),
    ):
        check_on(operation, 1, x, (2, 4, 1), out)
    with pytest.raises(BufferError, match="overlap on rank 1"):
        check_on(Operation.ALL_GATHER, 1, whole[1:5], (2, 4, 1), whole)


def test_every_algorithm_takes_counts(hpc):
    for operation in BLOCKED:
        for name in list_algorithm_names(operation):
            if operation is Operation.ALL_TO_ALL and name != "pairwise":
                continue
            result = getattr(hpc, operation.value)(matrix(), algorithm=name, **make_counts(operation, [4]))
            assert result.tolist() == matrix().tolist()


def test_debugging_compares_what_is_sent_with_what_is_expected():
    check = object.__new__(ArgumentCheck)
    check._calls = 1
    right = [("all_to_all", "", {EXCHANGED: (1, 2, 1, 3)}), ("all_to_all", "", {EXCHANGED: (3, 4, 2, 4)})]
    check._require_equal(right)
    right[1][2][EXCHANGED] = (3, 4, 5, 4)
    with pytest.raises(MismatchError, match="rank 0 sends 2 elements to rank 1, which expects 5"):
        check._require_equal(right)


def test_a_strided_input_is_read_again_in_every_call(hpc):
    wide, out = np.zeros((4, 2)), np.empty(4)
    for turn in range(5):
        wide[:, 0] = turn
        hpc.all_gather(wide[:, 0], counts=[4], out=out)
        x = wide[:, 0]
        for _ in range(3):
            hpc.all_gather(x, counts=[4], out=out)
            assert out.tolist() == [turn] * 4
        wide[:, 0] = -turn
        hpc.all_gather(x, counts=[4], out=out)
        assert out.tolist() == [-turn] * 4
