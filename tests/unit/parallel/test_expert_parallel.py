"""Routing of tokens to experts in one process: choices, weights, drops and the load-balancing loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.train.options import ExpertConfig, GptConfig, TrainOptions

torch = pytest.importorskip("torch")

from hpccoll.parallel.expert_parallel import add_to_loss, route_tokens  # noqa: E402 - torch may not be here
from hpccoll.train import gpt  # noqa: E402

# The probabilities of 3 experts for 4 tokens, whose first two choices are 01, 02, 10 and 01.
PROBABILITIES = torch.tensor(
    [[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.2, 0.7, 0.1], [0.8, 0.15, 0.05]], dtype=torch.float64
)
LOGITS = PROBABILITIES.log()


def list_kept(routing):
    """Return the tokens of each expert in their order."""
    return [part.tolist() for part in routing.tokens.split(routing.counts.tolist())]


@pytest.mark.parametrize(
    ("top_k", "capacity", "kept"),
    [
        (1, 4, [[0, 1, 3], [2], []]),
        (1, 2, [[0, 1], [2], []]),
        (2, 4, [[0, 1, 3, 2], [2, 0, 3], [1]]),  # first choices come before second choices
        (2, 3, [[0, 1, 3], [2, 0, 3], [1]]),
        (2, 1, [[0], [2], [1]]),
    ],
)
def test_each_expert_takes_its_first_tokens(top_k, capacity, kept):
    routing = route_tokens(LOGITS, top_k, capacity)
    assert list_kept(routing) == kept
    assert routing.counts.tolist() == [len(tokens) for tokens in kept]


def test_weights_are_the_probability_of_one_expert_or_divided_by_those_of_several():
    assert route_tokens(LOGITS, 1, 4).weights.tolist() == pytest.approx([0.6, 0.5, 0.8, 0.7])
    weights = [6 / 9, 5 / 8, 80 / 95, 2 / 9, 7 / 9, 3 / 9, 15 / 95, 3 / 8]
    assert route_tokens(LOGITS, 2, 4).weights.tolist() == pytest.approx(weights)


def test_the_balance_loss_counts_choices_before_they_are_dropped():
    fractions, means = [3 / 4, 1 / 4, 0], PROBABILITIES.mean(0).tolist()
    expected = 3 * sum(f * p for f, p in zip(fractions, means, strict=True))
    for capacity in (4, 1):
        assert float(route_tokens(LOGITS, 1, capacity).balance_loss) == pytest.approx(expected, rel=1e-12)
    even = torch.eye(3, dtype=torch.float64) * 1e-9  # choices are even, and so are probabilities
    assert float(route_tokens(even, 1, 9).balance_loss) == pytest.approx(1)
    collapsed = torch.tensor([[50.0, 0, 0]] * 5)
    assert float(route_tokens(collapsed, 1, 9).balance_loss) == pytest.approx(3)


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("factor", [None, 0.4, 1.0])
def test_routing_by_sorting_agrees_with_routing_by_masks(top_k, factor):
    config = ExpertConfig(4, top_k, factor)
    logits = torch.randn(33, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(top_k))
    factors, loss = gpt._weigh_experts_of_group(config, logits)
    routing = route_tokens(logits, top_k, config.compute_capacity(33))
    experts = torch.arange(4).repeat_interleave(routing.counts)
    found = torch.zeros(33, 4, dtype=torch.float64).index_put((routing.tokens, experts), routing.weights)
    assert torch.equal(found, factors)
    assert float(routing.balance_loss) == pytest.approx(float(loss), rel=1e-14)
    assert (len(routing.tokens) < 33 * top_k) == (factor == 0.4 or (factor == 1.0 and top_k < 4))


def test_the_capacity_is_the_mean_number_of_tokens_times_the_factor_rounded_up():
    config = ExpertConfig(8, top_k=2)
    assert config.compute_capacity(100) == 100
    assert [replace(config, capacity_factor=factor).compute_capacity(100) for factor in (1.0, 1.25, 0.001)] == [
        25,
        32,
        1,
    ]


def test_an_added_loss_gets_its_gradient_whatever_the_gradient_of_the_output_is():
    x, y = (torch.tensor(value, requires_grad=True) for value in ([2.0], 3.0))
    added = add_to_loss(x, y.square())
    assert torch.equal(added, x)
    (5 * added).sum().backward()
    assert (x.grad.tolist(), float(y.grad)) == ([5.0], 6.0)


GPT = GptConfig(experts=ExpertConfig(8))


@pytest.mark.parametrize(
    ("mesh", "model", "message"),
    [
        (Mesh(ep=3), GPT, "ep=3 ranks cannot share --experts 8 equally; give --experts 6 or 9, or ep=2 or 4"),
        (Mesh(ep=16), GPT, "ep=16 ranks cannot share --experts 8 equally; give --experts 16, or ep=8"),
        (Mesh(ep=2), GptConfig(), "ep=2 ranks have no experts to share; add --model gpt --experts 2, or give dp=2"),
        (
            Mesh(),
            replace(GPT, experts=ExpertConfig(4, top_k=5)),
            "--top-k 5 is more than --experts 4; give --top-k 4 or less, or --experts 5 or more",
        ),
        *(
            (
                Mesh(),
                replace(GPT, experts=ExpertConfig(8, capacity_factor=factor)),
                f"--capacity-factor {factor:g} gives --experts 8 no capacity for tokens; give a finite number",
            )
            for factor in (0.0, -1.0, float("nan"), float("inf"))
        ),
    ],
)
def test_experts_that_do_not_fit_are_refused(mesh, model, message):
    with pytest.raises(UsageError) as error:
        TrainOptions(model, 1).require_mesh_fits(mesh)
    assert message in str(error.value)
