"""Reductions by users' own functions: in all algorithms, in rank order if they do not commute, and in the library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hpccoll
from hpccoll.algorithms import list_algorithm_names
from hpccoll.errors import ReductionError
from hpccoll.plan import Operation

Numbers = NDArray[Any]
REDUCING = [operation for operation in Operation if operation.reduces]


def compose(first: Numbers, then: Numbers) -> Numbers:
    """The affine map real * x + imag of two affine maps, `first` applied before `then`."""
    composed: Numbers = first.real * then.real + 1j * (first.imag * then.real + then.imag)
    return composed


COMPOSE = hpccoll.Reduction.from_function(compose, commutative=False)
LARGER = hpccoll.Reduction.from_function(np.maximum, name="larger")


def bring(rank: int, count: int) -> Numbers:
    chance = np.random.default_rng(rank)
    return chance.integers(1, 3, count) + 1j * chance.integers(-3, 4, count)


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def expect(operation: Operation, data: Sequence[Numbers], rank: int, function: Any) -> Numbers | None:
    """Return the expected result of a rank; None on a rank without a result."""
    if operation is Operation.EXSCAN and rank == 0:
        return None
    total: Numbers = reduce(function, data[: rank + (operation is Operation.SCAN)] if operation.is_scan else data)
    return total.reshape(len(data), -1)[rank] if operation is Operation.REDUCE_SCATTER else total


@pytest.mark.parametrize("each_rank", [1, 500, pytest.param(20_000, marks=pytest.mark.full_except_on(2, 3))])
@pytest.mark.parametrize("reduction", [COMPOSE, LARGER], ids=lambda reduction: reduction.name)
@pytest.mark.parametrize("operation", REDUCING)
def test_results_are_those_of_the_function(hpc, operation, reduction, each_rank):
    n, rank = hpc.size, hpc.rank
    data = [bring(each, each_rank * n) for each in range(n)]
    refused = []
    for name in ("auto", "mpi", *list_algorithm_names(operation)):
        for root in {0, n - 1} if operation.has_root else {0}:
            how: dict[str, Any] = {"algorithm": name, "op": reduction} | ({"root": root} if operation.has_root else {})
            wanted = (
                expect(operation, data, rank, reduction.combine) if rank == root or not operation.has_root else None
            )
            out = np.zeros(each_rank * (1 if operation is Operation.REDUCE_SCATTER else n), complex)
            try:
                for turn in range(4):
                    x = data[rank].copy()
                    found = getattr(hpc, operation.value)(x, out=out, async_op=turn == 3, **how)
                    found = found.wait() if turn == 3 else found
                    assert wanted is None or found.tolist() == wanted.tolist(), (name, root)
            except ReductionError:
                refused.append(name)
    assert reduction is COMPOSE or not refused
    assert "auto" not in refused
    assert "mpi" not in refused
    if n > 2 and reduction is COMPOSE and operation is Operation.ALL_REDUCE:
        assert "ring" in refused
        assert "tree" not in refused


def test_half_precision_is_reduced(hpc):
    add = hpccoll.Reduction.from_function(np.add)
    assert hpc.all_reduce(np.ones(3, np.float16), op=add).tolist() == [hpc.size] * 3


def test_a_sum_by_a_function_named_avg_is_not_divided(hpc):
    add = hpccoll.Reduction.from_function(np.add, name="avg")
    for algorithm in ("auto", "mpi", "ring"):
        for _ in range(3):
            assert hpc.all_reduce(np.ones(3), op=add, algorithm=algorithm).tolist() == [hpc.size] * 3
