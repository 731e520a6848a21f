"""Steps of several ranks, here threads: all succeed, or all ranks raise the first failing rank's error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from hpccoll.errors import MismatchError, UnavailableError
from hpccoll.runtime.agreement import gather_or_raise, run_or_raise

N = 4


class ThreadComm:
    """The all-gather of a communicator whose ranks are threads of this process."""

    def __init__(self, rank, shared, barrier):
        self.rank, self.size, self.calls = rank, N, 0
        self._shared, self._barrier = shared, barrier

    def allgather(self, value):
        self.calls += 1
        self._shared[self.rank] = value
        self._barrier.wait()
        gathered = list(self._shared)
        self._barrier.wait()
        return gathered


def run_on_ranks(body):
    """Return the result of `body(comm)`, or its exception, on each rank."""
    shared, barrier = [None] * N, Barrier(N, timeout=10)

    def run(rank):
        comm = ThreadComm(rank, shared, barrier)
        try:
            return body(comm)
        except Exception as error:  # noqa: BLE001 - what a rank raises is what it is asked for
            return error
        finally:
            assert comm.calls == 1, "a failed rank must take part in the one exchange, and in no other"

    with ThreadPoolExecutor(N) as pool:
        return list(pool.map(run, range(N)))


def test_gather_returns_all_results_in_rank_order_on_every_rank():
    outcomes = run_on_ranks(lambda comm: gather_or_raise(comm, lambda: comm.rank * 10, UnavailableError))
    assert outcomes == [[0, 10, 20, 30]] * N


def test_results_may_be_false_or_none():
    outcomes = run_on_ranks(lambda comm: gather_or_raise(comm, lambda: (None, 0, "", False)[comm.rank], RuntimeError))
    assert outcomes == [[None, 0, "", False]] * N


def test_run_returns_the_own_result():
    kept = [object() for _ in range(N)]
    assert run_on_ranks(lambda comm: run_or_raise(comm, lambda: kept[comm.rank], UnavailableError)) == kept


@pytest.mark.parametrize("agree", [gather_or_raise, run_or_raise])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no space left\nsecond line"), "no space left"),
        (MismatchError("shapes differ"), "shapes differ"),
        (RuntimeError(), "RuntimeError"),
        (ImportError("no cupy"), "no cupy"),
    ],
)
def test_all_ranks_raise_the_first_failing_ranks_reason(agree, error, reason):
    def step(rank):
        if rank >= 2:
            raise error if rank == 2 else OSError("a later rank's reason")
        return rank

    outcomes = run_on_ranks(lambda comm: agree(comm, lambda: step(comm.rank), UnavailableError))
    assert [type(outcome) for outcome in outcomes] == [UnavailableError] * N
    assert [str(outcome) for outcome in outcomes] == [f"rank 2: {reason}"] * N


def test_an_error_of_another_kind_is_not_caught():
    """A mistake in the code must show its own traceback, on the rank that made it."""

    class NoComm(ThreadComm):
        def allgather(self, value):
            raise AssertionError(f"exchanged {value}")

    comm: Any = NoComm(0, [], None)
    with pytest.raises(ZeroDivisionError):
        gather_or_raise(comm, lambda: 1 / 0, UnavailableError)
