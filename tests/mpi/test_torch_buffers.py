"""Torch tensors on the CPU: the same collectives on the same memory, as NumPy arrays."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import hpccoll
from hpccoll.arrays import DTYPES
from hpccoll.errors import BufferError, ReductionError, UnknownNameError
from hpccoll.measure.data import make_input

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
COMPLEX = ["complex64", "complex128"]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def tensor(torch, name: str, rank: int, count: int):
    """A tensor with the bits that NumPy would have."""
    values = make_input(DTYPES[name], 9, rank, count)
    if name == "bfloat16":
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(values.copy())


def bits(tensor) -> bytes:
    import torch

    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
def test_every_dtype_reduces_to_the_bits_that_numpy_gets(hpc, torch, name, algorithm):
    op = "max" if name == "bool" else "sum"
    op = "sum" if name in COMPLEX else op
    for count in (0, 1, 501):
        x, y = tensor(torch, name, hpc.rank, count), make_input(DTYPES[name], 9, hpc.rank, count)
        hpc.all_reduce(y, op=op, algorithm=algorithm)
        out = torch.zeros_like(x)
        assert hpc.all_reduce(x, out=out, op=op, algorithm=algorithm) is out
        assert bits(out) == y.tobytes()
        z = torch.empty_like(x)
        for _ in range(3):  # first seen, bound, remembered
            z.copy_(x)
            assert hpc.all_reduce(z, op=op, algorithm=algorithm) is z
            assert bits(z) == y.tobytes()


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_moves(hpc, torch, name):
    x = tensor(torch, name, hpc.rank, 33)
    every = [tensor(torch, name, rank, 33) for rank in range(hpc.size)]
    got = hpc.all_gather(x)
    assert (got.dtype, tuple(got.shape)) == (x.dtype, (hpc.size, 33))
    assert bits(got) == b"".join(map(bits, every))
    assert bits(hpc.broadcast(x.clone(), root=hpc.size - 1)) == bits(every[-1])
    work = hpc.isend(x, (hpc.rank + 1) % hpc.size)
    assert bits(hpc.recv(torch.zeros_like(x), (hpc.rank - 1) % hpc.size)) == bits(every[hpc.rank - 1])
    work.wait()


def test_what_is_returned_is_a_tensor_of_the_same_kind(hpc, torch):
    x = torch.arange(4 * hpc.size, dtype=torch.float32).reshape(hpc.size, 4)
    assert hpc.reduce_scatter(x).tolist() == (x[hpc.rank : hpc.rank + 1] * hpc.size).tolist()
    swapped = hpc.all_to_all(x + 100 * hpc.rank)
    assert swapped.tolist() == [(x[hpc.rank] + 100 * rank).tolist() for rank in range(hpc.size)]
    assert isinstance(hpc.all_reduce(x.clone(), async_op=True).wait(), torch.Tensor)


def test_a_leaf_that_wants_gradients_is_reduced_in_place(hpc, torch):
    x = torch.ones(5, requires_grad=True)
    assert hpc.all_reduce(x) is x
    assert x.requires_grad
    assert x.is_leaf
    assert x.tolist() == [hpc.size] * 5
    assert not hpc.all_gather(torch.ones(3, requires_grad=True)).requires_grad
    parameter = torch.nn.Parameter(torch.ones(2))
    hpc.all_reduce(parameter, op="avg")
    assert parameter.tolist() == [1, 1]


def test_no_dimensions_and_no_elements(hpc, torch):
    x = torch.tensor(2.5)
    hpc.all_reduce(x)
    assert x.item() == 2.5 * hpc.size
    assert tuple(hpc.all_gather(torch.tensor(1)).shape) == (hpc.size,)
    assert tuple(hpc.all_reduce(torch.empty(0, 3)).shape) == (0, 3)


def test_strided_inputs_are_read_and_strided_outputs_refused(hpc, torch):
    x = torch.arange(24.0).reshape(4, 6)
    for y in (x[:, ::2], x.t(), x[1:3, 1:3], x[0].expand(3, 6)):
        out = torch.zeros(y.shape)
        hpc.all_reduce(y, out=out)
        assert out.tolist() == (y * hpc.size).tolist()
        with pytest.raises(BufferError, match=r"is not C-contiguous and would be written; pass tensor.contiguous"):
            hpc.all_reduce(y)


def test_lazily_conjugated_inputs_are_read_and_such_outputs_refused(hpc, torch):
    x = torch.tensor([1 + 2j, 3 - 4j])
    out = torch.zeros_like(x)
    for y in (x.conj(), x.conj().imag, torch._neg_view(x)):
        assert y.is_conj() or y.is_neg()
        target = torch.zeros_like(y.resolve_conj().resolve_neg())
        hpc.all_reduce(y, out=target)
        assert target.tolist() == (y * hpc.size).tolist()
        with pytest.raises(BufferError, match="lazily conjugated or negated"):
            hpc.all_reduce(y)
    with pytest.raises(BufferError, match="lazily conjugated or negated"):
        hpc.all_reduce(x, out=out.conj())


def test_tensors_of_other_layouts_and_devices_are_refused(hpc, torch):
    with pytest.raises(BufferError, match=r"torch.sparse_coo tensor on cpu"):
        hpc.all_reduce(torch.eye(3).to_sparse())
    with pytest.raises(BufferError, match=r"on meta; pass a dense one on cpu or cuda"):
        hpc.all_reduce(torch.empty(3, device="meta"))


def test_dtypes_that_only_torch_has_are_unknown(hpc, torch):
    with pytest.raises(UnknownNameError, match="unknown dtype 'float8_e4m3fn'"):
        hpc.all_reduce(torch.ones(3).to(torch.float8_e4m3fn))


def test_reductions_that_a_dtype_does_not_have_are_refused(hpc, torch):
    with pytest.raises(ReductionError, match="'avg' is not defined for dtype int32"):
        hpc.all_reduce(torch.ones(3, dtype=torch.int32), op="avg")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "int32"])
def test_factors_may_be_tensors(hpc, torch, name):
    kind = getattr(torch, name)
    factors = [torch.tensor(2, dtype=kind), torch.full((3,), 2, dtype=kind), 2]
    if name != "int32":
        factors.append(torch.full((2, 1), 2.0, requires_grad=True))
    for factor in factors:
        x = torch.ones((2, 3), dtype=kind)
        hpc.all_reduce(x, op=hpccoll.premul_sum(factor))
        assert (x == 2 * hpc.size).all()


def test_a_tensor_that_gets_another_storage_is_not_mistaken(hpc, torch):
    """The very same tensor object, bound long ago, over other memory, another length or another dtype."""
    x = torch.zeros(6)
    total = hpc.size * (hpc.size - 1) / 2

    def right():
        for _ in range(3):
            x.fill_(hpc.rank)
            hpc.all_reduce(x, algorithm="ring")
            assert set(x.tolist()) == {total}

    right()
    old = x.untyped_storage()
    x.set_(torch.zeros(6))
    right()
    x.data = torch.zeros(9)
    right()
    x.resize_(3)
    right()
    x.set_(old, 0, (2,))
    right()
    x.set_(old, 2, (3,), (1,))
    right()
    x.data = x.data.view(torch.int32)
    right()
    x.resize_(5000)
    right()


def test_numpy_and_torch_over_the_same_memory_are_one_buffer(hpc, torch):
    x = np.zeros(10, np.float32)
    view = torch.from_numpy(x)
    for _ in range(3):
        view.fill_(1)
        hpc.all_reduce(view)
        hpc.all_reduce(x)
        assert set(view.tolist()) == {hpc.size**2}
    out = torch.zeros(10)
    hpc.all_reduce(x * 0 + 1, out=out)
    assert out.tolist() == [hpc.size] * 10
