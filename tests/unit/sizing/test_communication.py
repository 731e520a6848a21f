"""Traffic per strategy and class of link, by hand and against the simulator of hpccoll's plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpccoll.algorithms import ring
from hpccoll.parallel import Mesh
from hpccoll.plan import Groups, Operation, Plan, run_in_groups, simulate
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.sizing import TrainingSetup, TransformerShape
from hpccoll.sizing.communication import Traffic, list_traffic
from hpccoll.sizing.group_links import find_group_links
from hpccoll.sizing.parameters import count_parameters
from hpccoll.sizing.perceptron_shape import LinearShape, PerceptronShape

DGX, SUMMIT = load_machine("dgx-h100"), load_machine("summit")
MODEL = TransformerShape(layers=4, width=64, heads=8, vocabulary=128, like_llama=True, context=32)
TOKENS = 32
N = TOKENS * 64 * 2  # bytes of the activations of a sample in bfloat16


def list_sent(**changed: Any) -> dict[tuple[str, str], Traffic]:
    setup = TrainingSetup(MODEL, Mesh(), 16, TOKENS, 2)
    return {(each.strategy, each.collective): each for each in list_traffic(replace(setup, **changed), DGX)}


def test_zero_1_and_2_send_as_much_as_dp_and_zero_3_half_as_much_again():
    """Rajbhandari et al., ZeRO, arXiv 1910.02054, section 7: 2, 2, 2 and 3 times the parameters for large n."""
    mesh, weights = Mesh(dp=8), 2 * count_parameters(MODEL).total
    expected = {0: 2, 1: 2, 2: 2, 3: 3}
    for zero, times in expected.items():
        sent = sum(each.sent_bytes for each in list_sent(mesh=mesh, zero=zero, microbatches=1).values())
        assert sent == pytest.approx(times * 7 / 8 * weights), zero


def test_zero_pads_the_parameters_of_each_part_to_a_multiple_of_the_ranks():
    """By hand: two layers of 7 x 7 + 7 and 7 x 3 + 3 parameters become 57 and 24 on 3 ranks."""
    linears = LinearShape(7, 7, "column"), LinearShape(7, 3, "row")
    model = PerceptronShape(linears, keeps_outputs=True, has_classes=True)
    sent = list_sent(model=model, mesh=Mesh(dp=3), batch=3, microbatches=1, sequence=1, zero=1)
    assert sent["zero1", "all_gather"].sent_bytes == pytest.approx(2 / 3 * 2 * (57 + 24))


def test_zero_2_reduces_and_zero_3_gathers_in_every_micro_batch():
    mesh, share = Mesh(dp=8), 7 / 8 * 2 * count_parameters(MODEL).total
    two, three = (list_sent(mesh=mesh, zero=zero) for zero in (2, 3))
    assert two["zero2", "reduce_scatter"].sent_bytes == pytest.approx(2 * share)
    assert two["zero2", "all_gather"].sent_bytes == pytest.approx(share)
    assert three["zero3", "all_gather"].sent_bytes == pytest.approx(4 * share)


def test_tensor_parallelism_makes_four_all_reduces_per_layer_and_two_outside():
    sent = list_sent(mesh=Mesh(tp=4), batch=2)["tp", "all_reduce"]
    assert sent.calls == 2 * (4 * 4 + 2 + 3)
    assert sent.sent_bytes == pytest.approx(2 * 3 / 4 * 2 * ((4 * 4 + 2) * N + 3 * 4 * TOKENS))
    full = list_sent(mesh=Mesh(tp=4), batch=2, recompute="full")["tp", "all_reduce"]
    assert full.calls == 2 * (6 * 4 + 2 + 3)


def test_sequence_parallelism_sends_as_much_in_the_forward_pass_and_gathers_inputs_again():
    sent = list_sent(mesh=Mesh(tp=4), batch=2, sequence_parallel=True)
    assert sent["sp", "reduce_scatter"].sent_bytes == pytest.approx(3 / 4 * 2 * (4 * 4 + 2) * N)
    assert sent["sp", "all_gather"].sent_bytes == pytest.approx(3 / 4 * 2 * (4 * 4 + 2 + 2 * 4 + 1) * N)


def test_zero_shares_nothing_on_a_mesh_without_replicas():
    assert list_sent(mesh=Mesh(tp=4), batch=2, sequence_parallel=True, zero=1) == list_sent(
        mesh=Mesh(tp=4), batch=2, sequence_parallel=True
    )


@pytest.mark.parametrize(
    ("pp", "schedule", "sends"), [(2, "1f1b", 1), (4, "1f1b", 2), (2, "interleaved_1f1b", 3), (2, "zbv", 2)]
)
def test_a_rank_of_a_pipeline_sends_activations_onward_and_gradients_back(pp, schedule, sends):
    sent = list_sent(mesh=Mesh(pp=pp), batch=4, microbatches=4, schedule=schedule)["pp", "send"]
    assert sent.calls == 4 * sends
    assert sent.sent_bytes == 4 * sends * N


def test_ring_attention_sends_keys_and_values_twice_and_their_gradients_once():
    sent = list_sent(mesh=Mesh(cp=4), batch=2)["cp", "send"]
    assert sent.calls == 2 * 4 * (3 + 3 + 3)
    assert sent.sent_bytes == 2 * 4 * (3 + 3 + 3) * 2 * N / 4


def test_experts_exchange_the_tokens_of_each_active_expert_four_times():
    model = TransformerShape(layers=4, width=64, heads=8, vocabulary=128, like_llama=True, experts=4, active_experts=2)
    sent = list_sent(model=model, mesh=Mesh(ep=4), batch=8)["ep", "all_to_all"]
    assert sent.calls == 2 * 4 * (4 + 1)
    assert sent.sent_bytes == 2 * 4 * 3 / 4 * (4 * 2 * N + 4 * 8)  # and the number of tokens for each of 4 experts


def test_a_tied_output_layer_sums_its_gradient_with_the_embedding():
    model = TransformerShape(layers=4, width=64, heads=8, vocabulary=128, context=32)
    assert list_sent(model=model, mesh=Mesh(pp=2))["pp", "all_reduce"].sent_bytes == 128 * 64 * 2


def test_links_inside_and_between_nodes_are_told_apart():
    mesh = Mesh(tp=4, dp=4)
    sent = list_sent(mesh=mesh)
    assert sent["tp", "all_reduce"].between_bytes == 0
    assert sent["dp", "all_reduce"].between_share == 0.5  # the ring 0, 4 | 8, 12 leaves a node twice
    wide = find_group_links(64, 8, 1, SUMMIT, every_peer=True)
    assert 0 < wide.between_share < 1


@pytest.mark.parametrize(
    ("machine", "size", "stride"),
    [(DGX, 8, 1), (DGX, 16, 1), (DGX, 8, 8), (SUMMIT, 12, 1), (SUMMIT, 6, 6), (SUMMIT, 8, 3)],
)
def test_the_time_of_a_ring_agrees_with_the_simulator(machine, size, stride):
    """All groups of the axis run at the same time, as one plan on all ranks, without latency."""
    flat = replace(
        machine,
        within=replace(machine.within, alpha_s=0.0, overhead_s=0.0),
        between=replace(machine.between, alpha_s=0.0, overhead_s=0.0),
        gamma_s_per_byte=0.0,
    )
    ranks = size * stride
    plan = run_in_axis_groups(size, stride)
    nbytes = 4 * 840 * size
    seconds = simulate(plan, flat, nbytes // 4, 4, full=True, trace=False).seconds
    links = find_group_links(ranks, size, stride, flat)
    sent = 2 * (size - 1) / size * nbytes
    assert links.compute_seconds(sent, 1, 0) == pytest.approx(seconds, rel=0.01)


def run_in_axis_groups(size: int, stride: int) -> Plan:
    """Return the plan in which `stride` groups of `size` ranks, `stride` apart, each run a ring all_reduce."""
    ranks = size * stride
    groups = Groups((size,) * stride, tuple(rank for first in range(stride) for rank in range(first, ranks, stride)))
    return Plan(Operation.ALL_REDUCE, "ring", ranks, 0, lambda rank: run_in_groups(ring.all_reduce, groups, rank))
