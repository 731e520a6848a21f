"""The link between two ranks is measured by both of them."""

from __future__ import annotations

import pytest

from hpccoll.preflight.link_benchmark import LinkBenchmark
from hpccoll.runtime import job

pytestmark = pytest.mark.mpi


@pytest.mark.needs_ranks(2)
def test_both_ranks_measure_a_latency_and_a_transfer_time(comm):
    if comm.rank > 1:
        return
    lost: list[object] = []
    sample = LinkBenchmark(comm, 1 - comm.rank, 60.0, lost).measure(1 << 20, job.load_mpi().Exception)
    assert (sample.broken, lost) == (None, [])
    assert 0 < sample.latency_seconds < 1
    assert 0 < sample.transfer_seconds < 10
