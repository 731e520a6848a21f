"""Calls that skip the checks on several ranks: results, sizes that share a selection, plans in flight, and the log."""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import hpccoll
import hpccoll.lowering
from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.errors import BufferError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.call_cache import CALLS_BEFORE_PLAN
from hpccoll.runtime.recorder.flight_recorder import get_recorder
from hpccoll.runtime.shared_memory import access
from hpccoll.selection import MPI_LIBRARY

COUNTS = (6, 7, 1000, 1001, 9000, 40_000)


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def forbid_checks(hpc, monkeypatch):
    """Let every call fail that does not skip the checks."""
    monkeypatch.setattr(hpc, "_check", None)


@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
@pytest.mark.parametrize("algorithm", ["auto", "mpi", "ring"])
def test_reductions_of_new_arrays(hpc, monkeypatch, op, algorithm):
    total = {"sum": hpc.size * (hpc.size + 1) / 2, "avg": (hpc.size + 1) / 2, "prod": np.prod(np.arange(hpc.size) + 1)}
    for turn in range(4):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for count in COUNTS:
            x, out = np.full(count, hpc.rank + 1.0), np.zeros(count)
            assert set(hpc.all_reduce(x, op, out=out, algorithm=algorithm).tolist()) == {total[op]}
            assert set(x.tolist()) == {hpc.rank + 1.0}
            assert set(hpc.all_reduce(x, op, algorithm=algorithm).tolist()) == {total[op]}


@pytest.mark.mpi(min_size=2)
def test_a_second_barrier_within_a_node_skips_the_checks(hpc, monkeypatch):
    hpc.barrier(algorithm="shared")
    forbid_checks(hpc, monkeypatch)
    hpc.barrier(algorithm="shared")


def test_the_library_is_called_with_the_size_of_each_call(hpc, monkeypatch):
    first = np.ones(1000)
    hpc.all_reduce(first, algorithm="mpi")
    forbid_checks(hpc, monkeypatch)
    for count in range(1000, 1024):
        assert hpc.all_reduce(np.ones(count), algorithm="mpi").tolist() == [hpc.size] * count


@pytest.mark.needs_ranks(2)
@pytest.mark.parametrize("algorithm", ["ring", "shared_two_shot"])
def test_short_calls_of_a_kind_make_one_executable_and_lower_their_plan_once(hpc, monkeypatch, algorithm):
    make, lower = Mock(wraps=hpc._engine._make_executable), Mock(wraps=hpccoll.lowering.lower_plan)
    monkeypatch.setattr(hpc._engine, "_make_executable", make)
    monkeypatch.setattr(hpccoll.lowering, "lower_plan", lower)
    for _ in range(3):
        assert hpc.all_reduce(np.ones(7), algorithm=algorithm).tolist() == [hpc.size] * 7
    assert (make.call_count, lower.call_count) == (1, 1)


@pytest.mark.parametrize("algorithm", ["auto", "mpi"])
def test_blocks_of_new_arrays(hpc, monkeypatch, algorithm):
    n = hpc.size
    for turn in range(4):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for count in COUNTS:
            x, many = np.full(count, hpc.rank), np.repeat(np.arange(n), count) + 10 * hpc.rank
            assert hpc.all_gather(x, algorithm=algorithm).tolist() == [[rank] * count for rank in range(n)]
            assert set(hpc.reduce_scatter(np.ones(n * count), algorithm=algorithm).tolist()) == {n}
            received = hpc.all_to_all(many, algorithm=algorithm)
            assert received.reshape(n, count)[:, 0].tolist() == [10 * rank + hpc.rank for rank in range(n)]
            gathered = hpc.gather(x, root=n - 1, algorithm=algorithm)
            assert (gathered is None) == (hpc.rank != n - 1)
            y = np.full(count, hpc.rank)
            assert set(hpc.broadcast(y, root=n - 1, algorithm=algorithm).tolist()) == {n - 1}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_asynchronous_calls_of_new_arrays(hpc, monkeypatch, kind):
    n, rank = hpc.size, hpc.rank
    make = pytest.importorskip("torch").from_numpy if kind == "torch" else np.asarray
    asynchronous = {"algorithm": "mpi", "async_op": True}
    for turn in range(3):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for count in COUNTS:
            x, many = make(np.full(count, rank + 1.0)), make(np.repeat(np.arange(n), count) + 10 * rank)
            rows = [count + other for other in range(n)]
            uneven = make(np.repeat(np.arange(n), [count + rank] * n) + 10 * rank)
            expected: dict[str, tuple[Any, Any]] = {
                "sum": (hpc.all_reduce(x, out=make(np.zeros(count)), **asynchronous), n * (n + 1) / 2),
                "mean": (hpc.all_reduce(make(np.full(count, rank + 1.0)), "avg", **asynchronous), (n + 1) / 2),
                "scan": (hpc.scan(x, out=make(np.zeros(count)), **asynchronous), (rank + 1) * (rank + 2) / 2),
                "copy": (hpc.broadcast(make(np.full(count, rank)), n - 1, **asynchronous), n - 1),
                "parts": (hpc.reduce_scatter(make(np.ones(n * count)), **asynchronous), n),
                "rows": (hpc.all_gather(x, **asynchronous), np.arange(1.0, n + 1)[:, None]),
                "blocks": (hpc.all_to_all(many, **asynchronous), np.repeat(10 * np.arange(n) + rank, count)),
                "uneven": (
                    hpc.all_to_all(uneven, counts=[count + rank] * n, out_counts=rows, **asynchronous),
                    np.repeat(10 * np.arange(n) + rank, rows),
                ),
            }
            gathered = hpc.gather(x, root=n - 1, **asynchronous)
            for name, (work, values) in reversed(expected.items()):
                assert (np.asarray(work.wait()) == values).all(), (name, turn, count)
            assert (gathered.wait() is None) == (rank != n - 1)


def test_an_asynchronous_call_keeps_its_new_array(hpc, comm):
    for _ in range(3):
        x = np.ones(1000)
        kept = weakref.ref(x)
        work = hpc.all_reduce(x, algorithm="mpi", async_op=True)
        del x, work
        if hpc.size > 1 and hpc.rank == 0:
            assert kept() is not None  # rank 1 has not called yet
        comm.Barrier()
        hpc.all_reduce(np.ones(1000), algorithm="mpi")
        hpc._engine.finish()
        assert kept() is None


@pytest.mark.parametrize("count", [5000, 40_001])
@pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.BROADCAST, Operation.ALL_GATHER])
def test_ranks_with_new_and_repeated_arrays_meet_in_every_algorithm(hpc, monkeypatch, operation, count):
    """In every turn one rank passes a new array, and the others an array that they have used before."""
    monkeypatch.setattr(hpc._engine.node, "slot_bytes", 2**16)
    for algorithm in list_algorithm_names(operation):
        mine = np.zeros(count, np.int64)
        for turn in range(2 * hpc.size + 2):
            x = np.zeros(count, np.int64) if hpc.rank == turn % hpc.size else mine
            x[:] = hpc.rank + 1
            result = getattr(hpc, operation.value)(x, algorithm=algorithm)
            expected = {
                Operation.ALL_REDUCE: {hpc.size * (hpc.size + 1) // 2},
                Operation.BROADCAST: {1},
                Operation.ALL_GATHER: set(range(1, hpc.size + 1)),
            }[operation]
            assert set(result.reshape(-1).tolist()) == expected


@pytest.mark.needs_ranks(2)
def test_large_new_arrays_are_staged_in_segments(hpc, monkeypatch):
    monkeypatch.setattr(access, "find_least_remote_bytes", lambda *_: 2**60)
    monkeypatch.setattr(hpc._engine.node, "slot_bytes", 2**16)
    for turn in range(5):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        x = np.arange(40_001.0) + turn
        hpc.all_reduce(x, algorithm="shared_two_shot")
        assert np.array_equal(x, hpc.size * (np.arange(40_001.0) + turn))


@pytest.mark.needs_ranks(2)
def test_an_input_that_the_ranks_do_not_divide_is_refused(hpc):
    for _ in range(2):
        hpc.all_to_all(np.ones((hpc.size, hpc.size + 1)))
        with pytest.raises(BufferError, match="not divisible"):
            hpc.all_to_all(np.ones((hpc.size + 1, hpc.size)))


def test_tensors_that_are_not_contiguous_are_checked(hpc):
    torch = pytest.importorskip("torch")
    for _ in range(3):
        hpc.all_reduce(torch.ones(6, 6), algorithm="mpi")
        with pytest.raises(BufferError, match="contiguous"):
            hpc.all_reduce(torch.arange(36.0).reshape(6, 6).t(), algorithm="mpi")


def test_a_plan_of_messages_skips_the_checks_while_plans_are_in_flight_too(hpc, monkeypatch):
    x, y = np.ones(50), np.ones(1000)
    hpc.all_reduce(np.ones(1000), algorithm="ring", async_op=True).wait()  # the first one makes all kinds unknown
    hpc.all_reduce(np.ones(50), algorithm="ring")
    work = hpc.all_reduce(y, algorithm="ring", async_op=True)
    forbid_checks(hpc, monkeypatch)
    hpc.all_reduce(x, algorithm="ring")
    work.wait()
    assert x.tolist() == [hpc.size] * 50
    assert y.tolist() == [hpc.size] * 1000


def test_the_log_names_sizes_that_share_a_selection(comm, monkeypatch, capsys):
    monkeypatch.setenv("HPCCOLL_LOG", "1")
    with hpccoll.Communicator(comm) as hpc:
        for count in (1, 2, 200, 201, 202):
            hpc.all_gather(np.ones(count))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (5 if comm.rank == 0 else 0)


def test_a_rank_with_a_symmetric_buffer_meets_ranks_without(hpc):
    """The rank with the symmetric buffer begins a direct run, and all ranks then run staged."""
    buffer = hpc.empty(500, "float64")
    for turn in range(6):
        x = buffer if hpc.rank == 0 and turn > 1 else np.zeros(500)
        x[:] = hpc.rank + turn
        hpc.all_reduce(x, algorithm="shared_two_shot")
        assert set(x.tolist()) == {sum(rank + turn for rank in range(hpc.size))}


def test_the_library_is_called_beside_plans_in_flight_and_after_asynchronous_calls(hpc, monkeypatch):
    """After an asynchronous call, by MPI's non-blocking form; from the second such call on, the checks are skipped."""
    n, rank = hpc.size, hpc.rank
    hpc.all_gather(np.ones(2), algorithm="mpi")
    with hpccoll.Communicator(hpc._comm) as other:
        work = other.all_reduce(np.ones(1000), algorithm="ring", async_op=True)
        assert hpc.all_gather(np.full(2, 1.0 + rank), algorithm="mpi")[:, 0].tolist() == list(range(1, n + 1))
        work.wait()
    hpc.all_reduce(np.ones(1000), async_op=True).wait()
    hpc.all_gather(np.ones(2), algorithm="mpi")
    forbid_checks(hpc, monkeypatch)
    for value in range(3):
        gathered = hpc.all_gather(np.full(2, value + rank * 1.0), algorithm="mpi")
        assert gathered[:, 1].tolist() == [value + other for other in range(n)]


@pytest.mark.parametrize("which", ["view", "strided", "symmetric", "output view", "output dtype", "output size"])
def test_the_library_gets_the_arrays_of_the_call(hpc, which):
    n = hpc.size
    hpc.all_gather(np.ones(2), out=np.zeros((n, 2)), algorithm="mpi")
    views = {"view": np.ones(6)[:2], "strided": np.ones(4)[::2], "symmetric": hpc.empty(2, "float64")}
    x = views.get(which, np.ones(2))
    x[...] = 1
    outputs = {"output view": np.zeros((n + 1, 2))[1:], "output dtype": np.zeros((n, 2), np.float32)}
    out = outputs.get(which, np.zeros((n, 3 if which == "output size" else 2)))
    for _ in range(2):
        if which in ("output dtype", "output size"):
            with pytest.raises(BufferError):
                hpc.all_gather(x, out=out, algorithm="mpi")
        else:
            assert hpc.all_gather(x, out=out, algorithm="mpi").tolist() == [[1, 1]] * n


@pytest.mark.parametrize("algorithm", ["shared_two_shot", "ring", "mpi", "auto"])
def test_symmetric_buffers_skip_the_checks(hpc, monkeypatch, algorithm):
    buffers = [hpc.empty(1000, "float64") for _ in range(3)]
    for turn in range(4):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for number, x in enumerate(buffers):
            x[:] = hpc.rank + turn + number
            hpc.all_reduce(x, algorithm=algorithm)
            assert set(x.tolist()) == {sum(rank + turn + number for rank in range(hpc.size))}


def test_ranks_may_pass_different_symmetric_buffers(hpc):
    buffers = [hpc.empty(1000, "float64") for _ in range(3)]
    for turn in range(12):
        x = buffers[(turn + hpc.rank * turn) % 3]
        x[:] = hpc.rank + turn
        hpc.all_reduce(x, algorithm="shared_two_shot")
        assert set(x.tolist()) == {sum(rank + turn for rank in range(hpc.size))}


@pytest.mark.parametrize("algorithm", ["shared_two_shot", "mpi"])
def test_asynchronous_calls_on_symmetric_buffers_skip_the_checks(hpc, monkeypatch, algorithm):
    buffers = [hpc.empty(1000, "float64") for _ in range(3)]
    for turn in range(4):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        for x in buffers:
            x[:] = hpc.rank + turn
        works = [hpc.all_reduce(x, algorithm=algorithm, async_op=True) for x in buffers]
        for work in works:
            assert set(work.wait().tolist()) == {sum(rank + turn for rank in range(hpc.size))}


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("algorithm", ["auto", "mpi", "shared", "tree"])
@pytest.mark.mpi(min_size=2)
def test_a_second_scatter_skips_the_checks(hpc, monkeypatch, root, algorithm):
    for turn in range(4):
        if turn == 1:
            forbid_checks(hpc, monkeypatch)
        x = np.repeat(np.arange(hpc.size) + turn, 3) if hpc.rank == root else None
        out = np.zeros(3, np.int64)
        assert hpc.scatter(x, root, out=out, algorithm=algorithm) is out
        assert out.tolist() == [hpc.rank + turn] * 3


def call_with_counts(hpc, operation, counts, algorithm, root, shift=0):
    """Call an operation on new arrays of `counts[r]` rows for rank r, and check the result."""
    n, rank = hpc.size, hpc.rank
    rows = np.repeat(np.arange(n), counts)[:, None] + np.array([0, 100]) + shift
    mine = rows[rows[:, 0] == rank + shift]
    how = {"counts": counts, "algorithm": algorithm}
    if operation is Operation.ALL_GATHER:
        result, expected = hpc.all_gather(mine.copy(), **how), rows
    elif operation is Operation.GATHER:
        result, expected = hpc.gather(mine.copy(), root, **how), rows if rank == root else None
    elif operation is Operation.SCATTER:
        out = np.zeros((counts[rank], 2), np.int64)
        result, expected = hpc.scatter(rows.copy() if rank == root else None, root, out=out, **how), mine
        assert result is out
    elif operation is Operation.REDUCE_SCATTER:
        result, expected = hpc.reduce_scatter(rows.copy(), **how), mine * n
    else:  # rank i sends counts[i] rows to every rank
        x = np.full((counts[rank] * n, 2), rank)
        how |= {"counts": [counts[rank]] * n, "out_counts": counts}
        result, expected = hpc.all_to_all(x, **how), np.repeat(np.arange(n), counts)[:, None] + np.zeros(2, np.int64)
    assert (result is None) == (expected is None)
    if result is not None:
        assert result.shape == expected.shape
        assert result.tolist() == expected.tolist()


UNEVEN = [operation for operation in Operation if operation.has_blocks]
UNEVEN_CALLS = [
    (operation, algorithm)
    for algorithm in ("auto", "mpi", "messages", "shared memory")
    for operation in UNEVEN
    if (operation, algorithm) != (Operation.ALL_TO_ALL, "shared memory")  # no such plan takes counts
]


@pytest.mark.parametrize(("operation", "algorithm"), UNEVEN_CALLS)
def test_blocks_of_different_sizes_on_new_arrays(hpc, monkeypatch, operation, algorithm):
    n = hpc.size
    name = algorithm
    if algorithm not in ("auto", "mpi"):
        shared = algorithm == "shared memory"
        known = [get_algorithm(operation, each) for each in list_algorithm_names(operation)]
        name = next(each.name for each in reversed(known) if each.uses_shared_memory == shared)
        if operation is Operation.ALL_TO_ALL:
            name = "pairwise"
    drawn = [[0] * (n - 1) + [3], [rank % 3 for rank in range(1, n + 1)], [40] + [7] * (n - 1), [500] + [0] * (n - 1)]
    for turn in range(3):
        if turn == 1 and algorithm != "auto":  # whose selection depends on the sum of the counts
            forbid_checks(hpc, monkeypatch)
        for counts in drawn:
            for root in (0, n - 1):
                call_with_counts(hpc, operation, counts, name, root, turn)


@pytest.mark.parametrize("operation", UNEVEN)
def test_the_library_is_called_with_the_counts_of_each_call(hpc, monkeypatch, operation):
    """Message sizes with the same leading bits share a selection, whatever the counts are."""
    n, root = hpc.size, hpc.size - 1
    call_with_counts(hpc, operation, [*[4] * (n - 1), 1000 - 4 * (n - 1)], "mpi", root)
    forbid_checks(hpc, monkeypatch)
    for first in (0, 4, 400):
        call_with_counts(
            hpc,
            operation,
            [first + 1000 - first * n, *[first] * (n - 1)] if first * n <= 1000 else [1000, *[0] * (n - 1)],
            "mpi",
            root,
        )


@pytest.mark.parametrize("operation", UNEVEN)
def test_wrong_counts_are_refused_after_right_ones(hpc, operation):
    n, rank = hpc.size, hpc.rank
    right = [3] * n
    for _ in range(3):
        call_with_counts(hpc, operation, right, "mpi", 0)
    gathers = operation in (Operation.ALL_GATHER, Operation.GATHER)
    x: Any = np.ones((3 if gathers else 3 * n, 2), np.int64)
    out = {"out": np.zeros((3, 2), np.int64)} if operation is Operation.SCATTER else {}
    if operation is Operation.SCATTER and rank:
        x = None
    for wrong in ([4] * n, [3] * (n + 1), [3.0] * n, [-3] * n, [[3]] * n):
        both = {"counts": wrong} | ({"out_counts": right} if operation is Operation.ALL_TO_ALL else {})
        with pytest.raises((BufferError, UsageError)):
            getattr(hpc, operation.value)(x, algorithm="mpi", **both, **out)


@pytest.mark.needs_ranks(2)
def test_empty_views_at_equal_addresses_are_not_passed_to_mpi(hpc):
    """MPI refuses an input and output at one address, also if both are empty."""
    counts = [2] + [0] * (hpc.size - 1)
    for _ in range(5):
        whole = np.zeros(2)
        if hpc.rank == 0:
            whole[:] = 3
        x = np.ones(2) if hpc.rank == 0 else whole[:0]
        assert hpc.all_gather(x, counts=counts, out=whole, algorithm="mpi").tolist() == [1, 1]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("operation", [Operation.ALL_GATHER, Operation.GATHER, Operation.REDUCE_SCATTER])
def test_the_library_carries_out_the_first_calls_with_new_counts_on_all_ranks(hpc, operation, asynchronous):
    """Also if the arrays of one rank need the checks in every call, and those of another rank in few calls."""
    n, rank = hpc.size, hpc.rank
    counts, known = [r + 2 for r in range(n)], {call.serial for call in get_recorder().read().calls}
    rows = sum(counts) if operation is Operation.REDUCE_SCATTER else counts[rank]
    for turn in range(CALLS_BEFORE_PLAN + 3):
        needs_checks = rank == 0 or (turn + rank) % 5 == 0
        x = np.full(2 * rows, rank + 1)[::2] if needs_checks else np.full(rows, rank + 1)
        result = getattr(hpc, operation.value)(x, counts=counts, async_op=asynchronous)
        result = result.wait() if asynchronous else result
        if operation is Operation.REDUCE_SCATTER:
            assert result.tolist() == [n * (n + 1) // 2] * counts[rank]
        else:
            assert result is None or result.tolist() == np.repeat(np.arange(n) + 1, counts).tolist()
    own = [call for call in get_recorder().read().calls if call.communicator == hpc._state.communicator]
    names = [call.algorithm for call in own if call.serial not in known and call.operation == operation.value]
    assert names[:CALLS_BEFORE_PLAN] == [MPI_LIBRARY] * CALLS_BEFORE_PLAN
    if n > 1 and n <= 4 and not asynchronous and len(hpc._engine.nodes) == 1:
        assert set(names[CALLS_BEFORE_PLAN:]) <= {"shared", "tree"}
        assert len(names) == CALLS_BEFORE_PLAN + 3
    assert len(set(hpc._comm.allgather(tuple(names)))) == 1


def test_calls_with_other_counts_each_time_make_no_plans(hpc, monkeypatch):
    monkeypatch.setattr(hpc._engine, "_make_executable", None)
    for turn in range(40):
        counts = [(turn * (r + 1)) % 7 + 1 for r in range(hpc.size)]
        whole = hpc.all_gather(np.full(counts[hpc.rank], hpc.rank), counts=counts)
        assert whole.tolist() == np.repeat(np.arange(hpc.size), counts).tolist()
