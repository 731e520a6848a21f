"""The clocks of ranks on several hosts are compared through the store of torch.distributed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpccoll.profile.store_clock import synchronize_by_store

dist = pytest.importorskip("torch.distributed")

SKEWS_S = (100.0, -7.0, 3000.0)


def synchronize(hosts):
    """Return the models of ranks with skewed clocks, one per host name."""
    store = dist.HashStore()

    def run(rank):
        return synchronize_by_store(store, rank, len(hosts), hosts[rank], lambda: time.perf_counter() + SKEWS_S[rank])

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(run, range(len(hosts))))


def test_the_clocks_of_several_hosts_become_that_of_rank_0():
    models = synchronize(("a", "b", "a"))
    now_s = time.perf_counter()
    for model, skew_s in zip(models, SKEWS_S, strict=True):
        assert abs(model.apply(now_s + skew_s) - (now_s + SKEWS_S[0])) <= model.error_s + 1e-9
        assert model.error_s < 0.05


def test_ranks_of_one_host_share_its_clock():
    assert synchronize(("a", "a", "a")) == [None] * 3


def test_all_ranks_begin_after_the_last_comparison():
    store, answers, returns = dist.HashStore(), [], []

    def answer():
        answers.append(time.perf_counter())
        return answers[-1]

    def run(rank):
        synchronize_by_store(store, rank, 3, f"host{rank}", time.perf_counter if rank else answer)
        returns.append(time.perf_counter())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    assert min(returns) >= max(answers)
