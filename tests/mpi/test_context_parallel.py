"""Attention around the ring has the outputs and the gradients of attention in one process."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import hpccoll
from hpccoll.errors import UsageError
from hpccoll.plan import Operation

torch = pytest.importorskip("torch")

from hpccoll.parallel import context_parallel  # noqa: E402 - torch may not be here
from hpccoll.parallel.axis_group import AxisGroup  # noqa: E402
from hpccoll.parallel.context_parallel import attend_around_ring, take_own_positions  # noqa: E402

SAMPLES, HEADS, FEATURES = 2, 3, 5


@pytest.fixture
def cp(comm):
    with hpccoll.Communicator(comm) as made:
        group = AxisGroup(made, list(range(made.size)), axis="cp")
        yield group
        group.close()


def compute_errors(cp, positions, dtype, *, is_causal):
    """Return the largest errors of this rank's output and gradients, relative to the largest magnitude of each.

    If there is one position in all, the gradients of queries and keys are zero, and their errors are absolute.
    """
    generator = torch.Generator().manual_seed(1)
    shape = SAMPLES, HEADS, positions * cp.size, FEATURES
    # Larger queries make the sums of the blocks' weights differ, so that an error of the merged sums shows.
    whole = [torch.randn(shape, generator=generator, dtype=torch.float64) * scale for scale in (2, 1, 1)]
    grad = torch.randn(shape, generator=generator, dtype=torch.float64)

    def cut(x):
        own = take_own_positions(x, 2, cp) if is_causal else x.chunk(cp.size, 2)[cp.index]
        return own.clone()

    own = queries, keys, values = [cut(x).to(dtype).requires_grad_() for x in whole]
    output = attend_around_ring(queries, keys, values, cp, is_causal=is_causal)
    output.backward(cut(grad).to(dtype))
    leaves = [x.requires_grad_() for x in whole]
    scores = leaves[0] @ leaves[1].transpose(2, 3) / FEATURES**0.5
    if is_causal:
        scores = scores + torch.full(scores.shape[2:], -torch.inf).triu(1)
    expected = scores.softmax(3) @ leaves[2]
    expected.backward(grad)
    pairs = [(output.detach(), expected.detach()), *((a.grad, b.grad) for a, b in zip(own, leaves, strict=True))]
    return [float((found - cut(right)).abs().max()) / (float(right.abs().max()) or 1.0) for found, right in pairs]


def test_positions_that_ranks_cannot_share_equally_are_refused(cp):
    with pytest.raises(UsageError, match="equal parts") if cp.size > 1 else nullcontext():
        take_own_positions(torch.zeros(2, 2 * cp.size + 2), 1, cp)


# A causal rank has two parts of its positions; the other lengths are odd.
@pytest.mark.parametrize(("positions", "is_causal"), [(2, True), (6, True), (1, False), (7, False), (6, False)])
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 1e-5)])
def test_ring_attention_is_attention(cp, positions, is_causal, dtype, limit):
    assert max(compute_errors(cp, positions, getattr(torch, dtype), is_causal=is_causal)) < limit


def attend_to_own_block_only(patch):
    patch.setattr(context_parallel, "_receive_blocks", lambda own, cp: iter([(cp.index, own)]))


def keep_gradients_of_own_queries(patch):
    """Gradients of keys and values are not summed over the ranks."""
    patch.setattr(context_parallel, "_sum_block_gradients", lambda addends, cp: dict(addends)[cp.index])


def forget_the_zigzag(patch):
    """Let queries attend to the wrong half of the block of a higher rank."""
    original = context_parallel._select_pairs
    patch.setattr(
        context_parallel,
        "_select_pairs",
        lambda mine, index, length, **options: original(-mine, -index, length, **options),
    )


@pytest.mark.parametrize("plant", [attend_to_own_block_only, keep_gradients_of_own_queries, forget_the_zigzag])
@pytest.mark.needs_ranks(2)
def test_faults_change_outputs_or_gradients(cp, monkeypatch, plant):
    plant(monkeypatch)
    assert max(compute_errors(cp, 4, torch.float64, is_causal=True)) > 1e-3


def test_a_rank_sends_each_block_but_one_per_pass(cp):
    compute_errors(cp, 4, torch.float64, is_causal=True)
    block = 2 * SAMPLES * HEADS * 4 * FEATURES * 8
    assert cp.sent_bytes.get("send", 0) == 3 * (cp.size - 1) * block


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_gradients_follow_the_blocks_around_the_ring(size):
    for index in range(size):
        blocks = context_parallel._list_rounds(Operation.ALL_GATHER, index, size)
        gradients = context_parallel._list_rounds(Operation.REDUCE_SCATTER, index, size, counts_backwards=True)
        assert [each.received for each in blocks] == [each.sent for each in gradients]
        assert {each.dest for each in (*blocks, *gradients)} == {(index - 1) % size}
        assert gradients[-1].received == index


def test_every_rank_computes_as_many_scores():
    for size in (2, 4, 8):
        counts = np.zeros(size, int)
        for mine in range(size):
            for index in range(size):
                pairs = context_parallel._select_pairs(mine, index, 6, is_causal=True)
                counts[mine] += len(range(6)[pairs.queries]) * len(range(6)[pairs.keys])
        assert set(counts) == {36 + (size - 1) * 18}
