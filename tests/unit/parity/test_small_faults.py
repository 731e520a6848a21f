"""Faults slightly beyond the tolerance are found in every quantity, on one rank: no tolerance is too wide."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest

import hpccoll

torch = pytest.importorskip("torch")

from hpccoll.parity import ParityCase, ParityOptions, check_parity  # noqa: E402 - torch may not be here

SMALL = {torch.float32: 1e-4, torch.float64: 1e-11}  # ten times the tolerances that `hpccoll parity --help` states
NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
STEPS = 3


def compute_loss(model, x, y):
    return (model(x) - y).square().mean()


def run_backward(model, batch, _):
    loss = compute_loss(model, *batch)
    loss.backward()
    return loss


def build_case(dtype=torch.float64, **changes):
    """Return a small model with its batch and training step."""
    layers = torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    model = torch.nn.Sequential(*layers).to(dtype)
    model.eval()  # otherwise the step would change the buffers
    batch = [torch.randn(6, 4, dtype=dtype), torch.randn(6, 3, dtype=dtype)]
    return replace(ParityCase(model, batch, compute_loss, backward=run_backward), **changes)


def check_case(case, steps=STEPS):
    """Return the summary of the parity check of a case."""
    with hpccoll.Communicator() as comm:
        return check_parity(comm, case, "dp=1", ParityOptions(steps=steps)).summary


def test_layers_of_equal_values_are_told_apart_by_their_names():
    def build():
        layers = torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
        return build_case(model=torch.nn.Sequential(*layers).double().eval())

    assert check_case(build, steps=1).wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong_step", [1, STEPS])
def test_a_gradient_that_differs_slightly_is_found(dtype, name, wrong_step):
    steps = iter(range(1, STEPS + 1))

    def backward(model, batch, mesh):
        loss = run_backward(model, batch, mesh)
        gradient = dict(model.named_parameters())[name].grad
        if next(steps) == wrong_step:
            gradient.view(-1)[1] += SMALL[dtype] * gradient.abs().max()
        return loss

    summary = check_case(lambda: build_case(dtype, backward=backward))
    assert (summary.wrong, summary.first, summary.quantity, summary.step) == (1, name, "gradient", wrong_step)


@contextmanager
def fault(quantity):
    """Yield the arguments of a case with a fault in a quantity other than the gradients."""

    def wrap(model, _):
        with torch.no_grad():
            (model[1].running_mean if quantity == "buffer" else model[3].bias).view(-1)[1] += 1e-15
        return model

    with pytest.MonkeyPatch.context() as patch:
        if quantity == "parameter":
            patch.setattr(torch.optim, "SGD", lambda parameters, lr, step=torch.optim.SGD: step(parameters, lr * 1.001))
            yield {}
        elif quantity == "loss":
            slightly_more = 1 + SMALL[torch.float32] / 5
            yield {"dtype": torch.float32, "backward": lambda *given: run_backward(*given) * slightly_more}
        else:
            yield {"wrap": wrap}


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["parameter", "loss", "buffer", "initial parameter"])
def test_another_quantity_that_differs_slightly_is_found(quantity):
    with fault(quantity) as changes:
        assert check_case(lambda: build_case(**changes)).quantity == quantity
    assert check_case(build_case).wrong == 0
