"""The barrier that names missing ranks, on a store of torch and threads instead of ranks."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from hpccoll.torch.monitored_barrier import MonitoredBarrier

LONG, SHORT = timedelta(seconds=20), timedelta(seconds=0.05)


def run_ranks(timeouts: dict[int, timedelta], size: int, calls: int = 1, **options: bool) -> dict[int, str]:
    """Return the error of each of the ranks that have a timeout, or an empty string."""
    store, errors = dist.HashStore(), dict.fromkeys(timeouts, "")

    def run(rank: int) -> None:
        barrier = MonitoredBarrier(store, rank, size, bool)
        try:
            for _ in range(calls):
                barrier.run(timeouts[rank], **({"names_all": False} | options))
        except dist.DistBackendError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in timeouts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_it_completes_again_and_again():
    assert run_ranks(dict.fromkeys(range(3), LONG), 3, calls=5) == {0: "", 1: "", 2: ""}


def test_all_ranks_name_the_lowest_missing_rank():
    errors = run_ranks({0: SHORT, 2: LONG}, 5)
    assert "Rank 1 failed to pass monitoredBarrier within 0.05 s" in errors[0]
    assert "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv" in errors[2]
    assert "Rank 1 failed to pass monitoredBarrier" in errors[2]


def test_all_missing_ranks_are_named_on_demand():
    assert "Ranks 1, 3, 4 failed to pass monitoredBarrier" in run_ranks({0: SHORT, 2: LONG}, 5, names_all=True)[0]


def test_a_missing_rank_0_is_named_after_a_longer_time():
    began = time.monotonic()
    assert "Rank 0 failed to pass monitoredBarrier" in run_ranks({1: SHORT}, 2)[1]
    assert time.monotonic() - began > 1.1 * SHORT.total_seconds()


def test_a_barrier_that_times_out_keeps_the_answer_of_the_one_before():
    store = dist.HashStore()
    barrier = MonitoredBarrier(store, 0, 2, bool)
    store.set("monitored_barrier/1/1", "")  # rank 1 has called the first barrier, but not read the answer
    barrier.run(LONG, names_all=False)
    with pytest.raises(dist.DistBackendError):
        barrier.run(timedelta(0), names_all=False)
    assert store.check(["monitored_barrier/1/0"])
