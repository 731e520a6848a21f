"""Gradient buckets: sums over the ranks that start during the backward pass, once per step, into the same memory."""

from __future__ import annotations

import pytest

import hpccoll
from hpccoll.errors import UsageError

torch = pytest.importorskip("torch")

from hpccoll.parallel import axis_group  # noqa: E402 - torch may not be here
from hpccoll.parallel.data_parallel import GradientBuckets  # noqa: E402

SIZES = (3, 500, 1, 77, 2049)
BUCKET_BYTES = (0, 400, 4 * 578, 4 * 2049, 1 << 30)  # from a bucket for each parameter to one bucket for all


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.fixture(params=["inline", "in a thread"])
def dp(hpc, monkeypatch, request):
    """The ranks as a data-parallel group; in a thread, all_reduces advance as they do across nodes."""
    monkeypatch.setattr(axis_group, "_needs_thread", lambda _: request.param == "in a thread")
    group = axis_group.AxisGroup(hpc, list(range(hpc.size)))
    yield group
    group.close()


def make_parameters():
    return [torch.ones(size, dtype=torch.float64, requires_grad=True) for size in SIZES]


def run_pass(parameters, rank, microbatch, used):
    """Run a backward pass whose gradients differ in every element, rank and micro-batch."""
    losses = [
        (each * torch.arange(1.0, len(each) + 1, dtype=torch.float64) * (at + 1)).sum()
        for at, each in enumerate(parameters)
        if at in used
    ]
    (sum(losses) * (10 * rank + microbatch + 1)).backward()


def expect(at, size, ranks, microbatches):
    factor = sum(10 * rank + microbatch + 1 for rank in range(ranks) for microbatch in range(microbatches))
    return torch.arange(1.0, size + 1, dtype=torch.float64) * (at + 1) * factor


@pytest.mark.parametrize("max_bytes", BUCKET_BYTES)
def test_gradients_are_summed_over_ranks_and_microbatches(hpc, dp, max_bytes):
    parameters = make_parameters()
    buckets = GradientBuckets(parameters, dp, max_bytes)
    places = []
    for microbatches, used in ((1, range(5)), (3, range(5)), (2, (0, 2, 4)), (1, ())):
        buckets.begin(dict.fromkeys(parameters, microbatches))
        for microbatch in range(microbatches if used else 0):
            run_pass(parameters, hpc.rank, microbatch, used)
        buckets.finish()
        for at, each in enumerate(parameters):
            expected = expect(at, len(each), hpc.size, microbatches) * (at in used)
            assert torch.equal(each.grad, expected), (microbatches, at)
        places.append([each.grad.data_ptr() for each in parameters])
    assert hpc.size == 1 or all(place == places[0] for place in places), "gradients have left their buffers"


def test_buckets_keep_their_limit_and_the_order_of_the_backward_pass(hpc, dp):
    counts = {limit: [len(b) for b in GradientBuckets(make_parameters(), dp, limit).buffers] for limit in (0, 8 * 600)}
    assert counts == ({0: [2049, 77, 1, 500, 3], 8 * 600: [2049, 581]} if hpc.size > 1 else {0: [], 8 * 600: []})


def test_sums_start_in_the_last_backward_pass_and_once_per_step(hpc, dp, monkeypatch):
    """Each all_reduce starts before the pass computes the next layer's gradient, in the order of the buckets."""
    events: list[int | str] = []
    start = axis_group.AxisGroup.start_all_reduce

    def note(self, x):
        events.append(len(x))
        return start(self, x)

    monkeypatch.setattr(axis_group.AxisGroup, "start_all_reduce", note)
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    parameters = [each for layer in layers for each in layer.parameters()]
    buckets = GradientBuckets(parameters, dp, 4 * 20)
    buckets.begin(dict.fromkeys(parameters, 2))
    for microbatch in range(2):
        x = torch.ones(2, 4)
        for at, layer in enumerate(layers):
            x = layer(x)
            x.register_hook(lambda _, at=at: events.append(f"layer {at}"))
        events.append(f"pass {microbatch}")
        x.sum().backward()
    events.append("finish")
    buckets.finish()
    sums = [20] if hpc.size > 1 else []
    passes = [f"layer {at}" for at in (2, 1, 0)]
    assert events == ["pass 0", *passes, "pass 1", *(each for at in passes for each in (at, *sums)), "finish"]


def test_a_gradient_after_the_last_pass_is_refused(hpc, dp):
    parameters = make_parameters()
    buckets = GradientBuckets(parameters, dp, 1 << 20)
    buckets.begin(dict.fromkeys(parameters, 1))
    run_pass(parameters, hpc.rank, 0, range(5))
    if hpc.size > 1:
        with pytest.raises(hpccoll.UsageError, match="more backward passes"):
            run_pass(parameters, hpc.rank, 1, range(5))
    buckets.finish()


def test_an_all_reduce_in_flight_counts_as_communication_and_only_calls_as_exposed(hpc, dp):
    parameters = make_parameters()
    buckets = GradientBuckets(parameters, dp, 0)
    hpc.barrier()
    buckets.begin(dict.fromkeys(parameters, 1))
    run_pass(parameters, hpc.rank, 0, range(5))
    buckets.finish()
    assert 0 <= dp.exposed_seconds <= dp.timer.seconds
    assert (dp.exposed_seconds > 0) == (hpc.size > 1)


def test_the_gradients_are_symmetric_buffers(hpc, dp):
    """Ranks of a node read each other's gradients in place."""
    from hpccoll.runtime.node_memory.symmetric import shared_buffers

    buckets = GradientBuckets(make_parameters(), dp, 1 << 20)
    assert all(shared_buffers().find(buffer.data_ptr()) is not None for buffer in buckets.buffers)


@pytest.mark.needs_ranks(2)
def test_a_call_that_raises_stops_the_timer(dp):
    with pytest.raises(UsageError, match="average"):
        dp.all_reduce(torch.ones(3), "average")
    assert 0 < dp.exposed_seconds <= dp.timer.seconds
    before = dp.timer.seconds
    dp.all_reduce(torch.ones(3))
    assert dp.timer.seconds > before
