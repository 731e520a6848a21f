"""What `auto` takes without a measured table: few steps for short messages, few bytes for long ones."""

from __future__ import annotations

import pytest

from hpccoll.collectives import named, registered
from hpccoll.collectives.choice import LEAST_CHUNK_BYTES, UNTUNED, Link, best_algorithm, best_chunks, predicted_s
from hpccoll.plan.operation import Operation
from hpccoll.units import MiB


def test_model_on_a_ring_by_hand():
    link = Link(alpha_s=1.0, beta_s_per_byte=0.5)
    ring = named(Operation.ALL_REDUCE, "ring")
    assert predicted_s(ring, 4, 1, 8, link) == 6 * 1.0 + 2 * 3 / 4 * 8 * 0.5


def test_short_messages_take_few_steps_and_long_ones_few_bytes():
    assert best_algorithm(Operation.ALL_REDUCE, 8, 8).name in ("recursive_doubling", "tree")
    for n in (2, 3, 8):
        long = best_algorithm(Operation.ALL_REDUCE, n, 64 * MiB)
        cost = long.plan(n, 0, best_chunks(long, n, 64 * MiB)).cost
        assert cost is not None
        assert cost.most <= 2
    assert best_algorithm(Operation.ALL_REDUCE, 2, 64 * MiB).name in ("ring", "rabenseifner")


@pytest.mark.parametrize("each", registered(), ids=lambda each: each.full_name)
def test_chunks_are_one_unless_pipelined_and_never_tiny(each):
    for nbytes in (0, 8, LEAST_CHUNK_BYTES, 64 * MiB):
        chunks = best_chunks(each, 8, nbytes)
        assert chunks == 1 or ("chunks" in each.takes and nbytes // chunks >= LEAST_CHUNK_BYTES)


def test_pipelining_needs_a_line_to_fill():
    chain = named(Operation.BROADCAST, "chain")
    assert best_chunks(chain, 2, 64 * MiB) == 1
    assert best_chunks(chain, 8, 64 * MiB) > 1


@pytest.mark.parametrize("operation", Operation)
def test_every_operation_has_candidates_that_exist(operation):
    assert all(named(operation, name).operation is operation for name in UNTUNED[operation])
    assert best_algorithm(operation, 5, 1024).name in UNTUNED[operation]
