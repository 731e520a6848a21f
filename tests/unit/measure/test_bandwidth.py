"""Bandwidths against nccl-tests' table."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UnknownNameError
from hpccoll.measure.bandwidth import (
    compute_algbw,
    compute_busbw,
    compute_count,
    compute_message_bytes,
    find_timed_operation,
    get_busbw_factor,
)
from hpccoll.plan import Operation
from hpccoll.records import SEND_RECV

# operation: factor of n ranks, and S of `count` elements of `size` bytes on n ranks (as in nccl-tests)
TABLE = {
    "all_reduce": (lambda n: Fraction(2 * (n - 1), n), lambda count, size, n: count * size),
    "reduce_scatter": (lambda n: Fraction(n - 1, n), lambda count, size, n: count * size * n),
    "all_gather": (lambda n: Fraction(n - 1, n), lambda count, size, n: count * size * n),
    "all_to_all": (lambda n: Fraction(n - 1, n), lambda count, size, n: count * n * size),
    "broadcast": (lambda n: Fraction(1), lambda count, size, n: count * size),
    "reduce": (lambda n: Fraction(1), lambda count, size, n: count * size),
    "gather": (lambda n: Fraction(n - 1, n), lambda count, size, n: count * n * size),
    "scatter": (lambda n: Fraction(n - 1, n), lambda count, size, n: count * n * size),
    "send_recv": (lambda n: Fraction(1), lambda count, size, n: count * size),
    "scan": (lambda n: Fraction(1), lambda count, size, n: count * size),
    "exscan": (lambda n: Fraction(1), lambda count, size, n: count * size),
    "barrier": (lambda n: Fraction(0), lambda count, size, n: 0),
}
each_row = pytest.mark.parametrize("name", TABLE)


def test_the_table_is_complete():
    assert set(TABLE) == {operation.value for operation in Operation} | {SEND_RECV}


@each_row
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 24_576])
def test_factors_and_messages_are_those_of_the_table(name, n):
    factor, message = TABLE[name]
    op = find_timed_operation(name)
    assert get_busbw_factor(op, n) == pytest.approx(float(factor(n)))
    assert compute_message_bytes(op, 1000, 4, n) == message(1000, 4, n)
    assert compute_busbw(op, 10**9, 0.5, n) == pytest.approx(float(2 * factor(n)))


def test_a_gigabyte_has_a_thousand_million_bytes():
    assert compute_algbw(2**30, 1.0) == pytest.approx(1.073741824)
    assert compute_busbw(Operation.ALL_REDUCE, 4 * 10**9, 2.0, 4) == pytest.approx(3.0)


def test_one_rank_moves_nothing_in_a_collective_but_all_in_a_broadcast():
    assert compute_busbw(Operation.ALL_REDUCE, 10**9, 1.0, 1) == 0
    assert compute_busbw(Operation.BROADCAST, 10**9, 1.0, 1) == pytest.approx(1.0)


def test_no_time_at_all_is_still_a_number():
    assert compute_algbw(1, 0.0) == pytest.approx(1.0)  # a byte in a nanosecond


@pytest.mark.slow
@each_row
@given(count=st.integers(0, 2**40), size=st.sampled_from([1, 2, 4, 8, 16]), n=st.integers(1, 100))
def test_counts_come_back_from_their_message(name, count, size, n):
    op = find_timed_operation(name)
    expected = 0 if name == "barrier" else count
    assert compute_count(op, compute_message_bytes(op, count, size, n), size, n) == expected


@pytest.mark.slow
@each_row
@given(nbytes=st.integers(1, 2**40), size=st.sampled_from([1, 2, 4, 8, 16]), n=st.integers(1, 100))
def test_sizes_that_are_not_divisible_are_rounded_down_but_never_to_nothing(name, nbytes, size, n):
    op = find_timed_operation(name)
    count = compute_count(op, nbytes, size, n)
    if name == "barrier":
        assert count == 0
        return
    assert count >= 1
    assert compute_message_bytes(op, count, size, n) <= nbytes or count == 1
    assert compute_message_bytes(op, count + 1, size, n) > nbytes


@each_row
def test_no_bytes_are_no_elements(name):
    assert compute_count(find_timed_operation(name), 0, 4, 4) == 0


def test_eight_bytes_of_floats_gathered_by_four_ranks_are_sixteen():
    assert compute_count(Operation.ALL_GATHER, 8, 4, 4) == 1
    assert compute_message_bytes(Operation.ALL_GATHER, 1, 4, 4) == 16


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(UnknownNameError, match="send_recv"):
        find_timed_operation("allreduce")
