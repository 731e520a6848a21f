"""Overlap ratios against hpccoll's simulator: its time of the collective's plan over the time of the computation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.parallel import Mesh
from hpccoll.plan import Machine, Operation, simulate
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.sizing import TrainingSetup, TransformerShape, load_preset
from hpccoll.sizing.overlap import (
    compute_cp_ratio,
    compute_dp_ratio,
    compute_pp_ratio,
    compute_tp_ratio,
    list_overlaps,
)

F, BW, B = 989.4e12, 450e9, 2
H, T = 4096, 8192
MACHINE = Machine.flat(0.0, 1 / BW, 0.0)  # no latency, and reductions cost nothing: the assumptions of the formulas


def simulate_seconds(operation: Operation, name: str, n: int, nbytes: int) -> float:
    """Return the simulated seconds of a message of `nbytes`, nccl-tests' S, over n ranks."""
    plan = get_algorithm(operation, name).plan(n)
    count = operation.count_elements(nbytes, B, n)
    return simulate(plan, MACHINE, count, B, trace=False).seconds


@pytest.mark.parametrize("n", [2, 8, 24])
def test_data_parallelism_agrees_with_the_simulated_ring(n):
    weights = 12 * H * H
    seconds = simulate_seconds(Operation.ALL_REDUCE, "ring", n, B * weights)
    assert compute_dp_ratio(B, n, F, T, BW) == pytest.approx(seconds / (4 * T * weights / F), rel=0.01)


@pytest.mark.parametrize("n", [2, 8, 24])
def test_zero_3_agrees_with_the_simulated_all_gather_of_a_layer(n):
    weights = 12 * H * H
    seconds = simulate_seconds(Operation.ALL_GATHER, "ring", n, B * weights)
    assert compute_dp_ratio(B, n, F, T, BW) == pytest.approx(seconds / (2 * T * weights / F), rel=0.01)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tensor_parallelism_agrees_with_the_simulated_all_gather_and_reduce_scatter(n):
    for operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
        seconds = simulate_seconds(operation, "ring", n, B * T * H)
        assert compute_tp_ratio(B, n, F, H, BW) == pytest.approx(seconds / (2 * T * H * H / n / F), rel=0.01)


def test_a_pipeline_agrees_with_a_simulated_message():
    """A broadcast between two ranks is one message; layers of 16 h^2 weights give b F / (32 h L BW)."""
    seconds = simulate_seconds(Operation.BROADCAST, "tree", 2, B * T * H)
    layers, weights = 4, 4 * 16 * H * H
    ratio = compute_pp_ratio(B, H, F, weights, BW)
    assert ratio == pytest.approx(seconds / (2 * T * weights / F), rel=0.01)
    assert ratio == pytest.approx(B * F / (32 * H * layers * BW))


@pytest.mark.parametrize("n", [2, 8])
def test_ring_attention_agrees_with_the_simulated_ring(n):
    """The keys and values of all ranks go around the ring, as in an all_gather; each hop meets a block of scores."""
    kv_width, t = 1024, 2048
    seconds = simulate_seconds(Operation.ALL_GATHER, "ring", n, n * 2 * B * t * kv_width)
    blocks = (n - 1) * 2 * t * t * H / F
    assert compute_cp_ratio(B, kv_width, H, F, t, BW) == pytest.approx(seconds / blocks, rel=0.01)


def test_the_ratios_of_a_mesh_use_the_links_of_each_axis():
    """Llama-3-8B on DGX H100, by hand: dp over the network at 50 GB/s, tp inside nodes at 450 GB/s."""
    setup = TrainingSetup(load_preset("llama-3-8b"), Mesh(tp=8, dp=8), 64, 8192, 8)
    found = {each.strategy: each for each in list_overlaps(setup, load_machine("dgx-h100"))}
    assert found["tp"].ratio == pytest.approx(2 * 7 * 989.4e12 / (2 * 4096 * 450e9))
    assert found["dp"].ratio == pytest.approx(2 * 7 * 989.4e12 / (2 * 8 * 8192 * 50e9), rel=1e-3)
    assert not found["dp"].hides


def test_zero_3_pipeline_and_context_have_their_own_ratios():
    model = TransformerShape(layers=8, width=1024, heads=8, like_llama=True, context=4096)
    setup = TrainingSetup(model, Mesh(dp=2, pp=2, cp=2), 8, 4096, 4, zero=3)
    found = {each.strategy: each.ratio for each in list_overlaps(setup, load_machine("dgx-h100"))}
    assert list(found) == ["zero3", "pp", "cp"]
    assert found["pp"] == pytest.approx(2 * 989.4e12 / (32 * 1024 * 4 * 450e9))  # f = 4 h: 16 h^2 weights
    assert found["cp"] == pytest.approx(2 * 989.4e12 / (2048 * 450e9))


def test_communication_whose_bytes_cost_nothing_is_hidden():
    setup = TrainingSetup(load_preset("gpt2"), Mesh(dp=2), 2, 1024, 1)
    free = replace(Machine.flat(1e-6, 0.0, 0.0), peak_flop_per_s=F)
    assert [each.ratio for each in list_overlaps(setup, free)] == [0]


def test_gradients_of_all_experts_are_reduced_but_few_are_used():
    moe, dense = (replace_experts(count) for count in (8, 1))
    assert moe / dense == pytest.approx((4 + 8 * 12) / (4 + 12), rel=1e-2)


def replace_experts(experts: int) -> float:
    model = TransformerShape(layers=1, width=4096, heads=8, like_llama=True, context=4096, experts=experts)
    setup = TrainingSetup(model, Mesh(dp=8), 8, 4096, 1)
    return list_overlaps(setup, load_machine("dgx-h100"))[0].ratio
