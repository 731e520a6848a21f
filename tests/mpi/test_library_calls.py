"""Repeated calls that the MPI library carries out: each operation, on new arrays, in both of MPI's forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import MismatchError
from hpccoll.native import MpiCall
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM
from tests.mpi.test_call_cache import forbid_checks

COUNT = 5
ADD = hpccoll.Reduction.from_function(np.add)
DTYPES = ("int32", "float64", "complex64")


@pytest.fixture(params=["blocking", "non-blocking"])
def hpc(comm, request):
    """A communicator whose library calls have one of MPI's forms."""
    with hpccoll.Communicator(comm) as made:
        if request.param == "non-blocking":
            made.barrier(async_op=True).wait()
        yield made


def make_calls(hpc: hpccoll.Communicator, dtype: str) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Return for each operation a call on new arrays, and its expected result on this rank (None if undefined)."""
    n, rank, last = hpc.size, hpc.rank, hpc.size - 1
    own = np.full(COUNT, rank + 1, dtype)
    rows = np.arange(1, n + 1).astype(dtype).repeat(COUNT).reshape(n, COUNT)
    sent = (100 * rank + np.arange(n)).astype(dtype).repeat(COUNT)
    received = (100 * np.arange(n) + rank).astype(dtype).repeat(COUNT)
    total, before = n * (n + 1) // 2, rank * (rank + 1) // 2
    how: dict[str, Any] = {"algorithm": "mpi"}
    table = rows.copy() if rank == last else None
    return {
        "all_reduce": (lambda: hpc.all_reduce(own.copy(), **how), total),
        "all_reduce to out": (lambda: hpc.all_reduce(own.copy(), out=np.zeros(COUNT, dtype), **how), total),
        "all_reduce of a function": (lambda: hpc.all_reduce(own.copy(), ADD, **how), total),
        "reduce": (lambda: hpc.reduce(own.copy(), root=last, **how), total if rank == last else None),
        "scan": (lambda: hpc.scan(own.copy(), **how), before + rank + 1),
        "exscan": (lambda: hpc.exscan(own.copy(), **how), before if rank else None),
        "exscan to out": (lambda: hpc.exscan(own.copy(), out=np.zeros(COUNT, dtype), **how), before if rank else None),
        "broadcast": (lambda: hpc.broadcast(own.copy(), root=last, **how), n),
        "reduce_scatter": (lambda: hpc.reduce_scatter(rows.copy(), **how), n * (rank + 1)),
        "all_gather": (lambda: hpc.all_gather(own.copy(), **how), rows),
        "gather": (lambda: hpc.gather(own.copy(), root=last, **how), rows if rank == last else None),
        "scatter": (lambda: hpc.scatter(table, out=np.zeros(COUNT, dtype), root=last, **how), rank + 1),
        "all_to_all": (lambda: hpc.all_to_all(sent.copy(), **how), received),
        "barrier": (lambda: hpc.barrier(**how), None),
    }


def make_uneven_calls(hpc: hpccoll.Communicator, counts: list[int]) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Return for each operation with blocks of different sizes a call on new arrays, and its expected result."""
    n, rank, last = hpc.size, hpc.rank, hpc.size - 1
    own, everything = np.full(counts[rank], rank + 1.0), np.arange(1.0, n + 1).repeat(counts)
    how: dict[str, Any] = {"algorithm": "mpi"}
    sent, received = [counts[rank]] * n, counts
    table = everything.copy() if rank == last else None
    return {
        "all_gather": (lambda: hpc.all_gather(own.copy(), counts=counts, **how), everything),
        "reduce_scatter": (lambda: hpc.reduce_scatter(everything.copy(), counts=counts, **how), n * own),
        "gather": (
            lambda: hpc.gather(own.copy(), root=last, counts=counts, **how), everything if rank == last else None
        ),
        "scatter": (lambda: hpc.scatter(table, out=np.zeros_like(own), root=last, counts=counts, **how), own),
        "all_to_all": (
            lambda: hpc.all_to_all(np.full(sum(sent), rank + 1.0), counts=sent, out_counts=received, **how), everything
        ),
    }  # fmt: skip


@pytest.mark.parametrize("shift", [0, 1])
def test_blocks_of_different_sizes_on_new_arrays(hpc, monkeypatch, shift):
    """One rank has no elements."""
    calls = make_uneven_calls(hpc, [3 * ((rank + shift) % hpc.size) for rank in range(hpc.size)])
    for turn in range(3):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for name, (call, expected) in calls.items():
            result = call()
            assert expected is None or result.tolist() == expected.tolist(), (name, turn, hpc.rank, result)


def test_means_are_divided(hpc, monkeypatch):
    for turn in range(3):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        x, out = np.full(COUNT, hpc.rank + 1.0), np.zeros(COUNT)
        assert hpc.all_reduce(x, "avg", out=out, algorithm="mpi").tolist() == [(hpc.size + 1) / 2] * COUNT
        assert hpc.all_reduce(x, "avg", algorithm="mpi").tolist() == [(hpc.size + 1) / 2] * COUNT


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_on_new_arrays(hpc, monkeypatch, dtype):
    calls = make_calls(hpc, dtype)
    assert {name.split()[0] for name in calls} == {operation.value for operation in Operation}
    for turn in range(3):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for name, (call, expected) in calls.items():
            result = call()
            assert expected is None or (result == expected).all(), (name, turn, hpc.rank, result)


def test_native_code_carries_out_library_calls(hpc):
    request = Operation.ALL_GATHER, np.ones(COUNT), None, SUM, 0, "mpi", None
    hpc.all_gather(request[1], algorithm="mpi")
    found = hpc._engine.cache.blocking.find(*request)
    assert found is not None
    assert isinstance(found[0], MpiCall)


def test_counts_are_kept_until_an_asynchronous_exchange_is_complete(comm):
    with hpccoll.Communicator(comm) as hpc:
        counts = [COUNT] * hpc.size
        for _ in range(2):  # the second call is found in the table
            x = np.full(COUNT * hpc.size, hpc.rank + 1.0)
            work = hpc.all_to_all(x, counts=counts, out_counts=counts, algorithm="mpi", async_op=True)
            assert any(type(kept) is MpiCall for kept in work._operation._keep)
            assert work.wait().tolist() == np.arange(1.0, hpc.size + 1).repeat(COUNT).tolist()
            assert not work._operation._keep


@pytest.mark.needs_ranks(2)
def test_different_calls_of_repeated_kinds_are_refused(comm):
    with hpccoll.Communicator(comm) as hpc:
        for root in (0, 1):
            hpc.broadcast(np.ones(2**20), root=root, algorithm="mpi")
        with pytest.raises(MismatchError, match="root"):
            hpc.broadcast(np.ones(2**20), root=min(hpc.rank, 1), algorithm="mpi")


@pytest.mark.needs_ranks(3)
def test_a_long_block_that_a_rank_sends_to_itself_is_copied(hpc, monkeypatch):
    """`auto` leaves exchanges of blocks of different sizes on more than two ranks to the MPI library."""
    n, rank, count = hpc.size, hpc.rank, 8192
    sent = [count + rank * (other != rank) for other in range(n)]
    received = [count + other * (other != rank) for other in range(n)]
    for turn in range(2):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        x = np.repeat(100.0 * rank + np.arange(n), sent)
        result = hpc.all_to_all(x, counts=sent, out_counts=received)
        assert result.tolist() == np.repeat(100.0 * np.arange(n) + rank, received).tolist()


@pytest.mark.needs_ranks(2)
def test_ranks_with_other_arrays_meet_after_the_first_asynchronous_call(comm):
    """Rank 0's strided array takes the long way, in the non-blocking form; the tables of the others must agree."""
    with hpccoll.Communicator(comm) as hpc:
        plain, strided = np.full(COUNT, 1.0 + comm.rank), np.full(2 * COUNT, 1.0 + comm.rank)[::2]
        hpc.all_gather(plain, algorithm="mpi")
        hpc.barrier(async_op=True).wait()
        for _ in range(3):
            gathered = hpc.all_gather(strided if comm.rank == 0 else plain, algorithm="mpi")
            assert gathered[:, 0].tolist() == list(range(1, comm.size + 1))
