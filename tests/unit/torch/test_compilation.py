"""The exemption of the backend "hpccoll" from torch.compile, which uses functions of torch that are not public."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch

from hpccoll.torch.compilation import exempt_from_compilation


class Plain:
    """Has a method that autograd calls from C++, as DistributedDataParallel calls the methods of a backend."""

    def __init__(self) -> None:
        self.total = torch.zeros(2)

    def add_gradient(self, gradient: torch.Tensor) -> None:
        self.total = self.total * 2 + gradient


@exempt_from_compilation
class Exempt(Plain):
    def add_gradient(self, gradient: torch.Tensor) -> None:
        self.total = self.total * 2 + gradient


def count_compiled_products(called: Plain) -> int:
    """Return the number of graphs with a product that torch.compile makes when autograd calls `called.add_gradient`.

    `add_gradient` has the only product, so the number is 1 if the method is compiled, and 0 if not.
    """
    products = 0

    def compile_graph(graph, _):
        nonlocal products
        products += any("mul" in str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def call(x: torch.Tensor) -> None:
        (x + 1).sum().backward()

    torch._dynamo.reset()
    x = torch.ones(2, requires_grad=True)
    x.register_hook(called.add_gradient)
    torch.compile(call, backend=compile_graph)(x)
    assert called.total.tolist() == [1.0, 1.0]
    return products


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_skips_methods_of_exempt_classes():
    assert count_compiled_products(Plain()) == 1
    assert count_compiled_products(Exempt()) == 0
