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
    assert "rank 1 did not call it within 0.05 s" in errors[0]
    assert "rank 1 did not call it" in errors[2]


def test_all_missing_ranks_are_named_on_demand():
    assert "ranks 1, 3, 4 did not call it" in run_ranks({0: SHORT, 2: LONG}, 5, names_all=True)[0]


def test_a_missing_rank_0_is_named_after_a_longer_time():
    began = time.monotonic()
    assert "rank 0 did not call it" in run_ranks({1: SHORT}, 2)[1]
    assert time.monotonic() - began > 1.1 * SHORT.total_seconds()
