"""Tensors of torch.distributed as hpccoll communicates them: joined, split, copied back; and reductions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - torch may not be here

from hpccoll.arrays import Reduction  # noqa: E402
from hpccoll.errors import BufferError  # noqa: E402
from hpccoll.torch import tensors  # noqa: E402
from hpccoll.torch.reductions import parse_reduction  # noqa: E402
from hpccoll.torch.tensors import CopiesBack, find_flat, overlaps_wrongly  # noqa: E402


def test_adjacent_tensors_are_joined_without_a_copy():
    whole = torch.arange(6.0)
    flat = find_flat([whole[1:3], whole[3:6]])
    assert flat.tolist() == [1, 2, 3, 4, 5]
    assert flat.data_ptr() == whole[1:].data_ptr()


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, _: [x[:2], x[3:5]],
        lambda x, _: [x[2:4], x[:2]],
        lambda x, _: [x[:4].view(2, 2).t(), x[4:6]],
        lambda x, other: [x[:2], other[2:4]],
    ],
    ids=["gap", "other order", "transposed", "other storage"],
)
def test_other_tensors_are_joined_by_copies_that_are_copied_back(pick):
    tensors = pick(torch.arange(6.0), torch.arange(6.0))
    assert find_flat(tensors) is None
    copies = CopiesBack()
    assert torch.equal(copies.join_inputs(tensors), torch.cat([each.flatten() for each in tensors]))
    flat = copies.join_outputs(tensors)
    flat[:] = torch.arange(10.0, 10 + len(flat))
    for step in copies.steps:
        step()
    assert torch.equal(torch.cat([each.flatten() for each in tensors]), flat)


def test_outputs_that_overlap_earlier_ones_are_copied_and_copied_back():
    whole, other = torch.zeros(4), torch.zeros(4)
    listed, copies = [whole[:2], whole[1:3], whole[2:], whole[:2], other], CopiesBack()
    flat = copies.prepare_separately(listed)
    assert [one is each for one, each in zip(flat, listed, strict=True)] == [True, False, True, False, True]
    flat[1].fill_(5)
    copies.steps[0]()
    assert whole.tolist() == [0, 5, 5, 0]


def test_tensors_of_different_dtypes_are_not_joined():
    with pytest.raises(BufferError, match=r"torch.float32 and torch.float64; pass tensors of one dtype"):
        find_flat([torch.ones(2), torch.ones(2, dtype=torch.float64)])


VIEWS = {
    "contiguous": lambda: torch.zeros(2, 2),
    "transposed": lambda: torch.zeros(2, 2).t(),
    "conjugated": lambda: torch.zeros(2, 2, dtype=torch.complex64).conj(),
    "negated": lambda: torch.zeros(2, 2, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("listed", [False, True])
def test_views_are_read_and_written(view, listed):
    x, values = VIEWS[view](), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    values = values * (1 + 1j) if x.is_complex() else values
    copies = CopiesBack()
    output = copies.join_outputs([x]) if listed else copies.prepare_output(x)
    assert not output.is_conj()
    assert not output.is_neg()
    output.view(-1)[:] = values.flatten()
    for step in copies.steps:
        step()
    assert torch.equal(x, values)
    read = copies.join_inputs([x]) if listed else copies.prepare_input(x)
    assert not read.is_conj()
    assert not read.is_neg()
    assert read.is_contiguous()
    assert read.flatten().tolist() == values.flatten().tolist()


@pytest.mark.parametrize(
    ("begin", "end", "block", "is_wrong"),
    [(0, 6, None, False), (2, 4, 1, False), (0, 2, 1, True), (1, 3, 1, True), (3, 5, None, True), (0, 2, 0, False)],
)
def test_an_input_may_be_its_own_block_of_the_output(begin, end, block, is_wrong):
    out = torch.zeros(6)
    assert overlaps_wrongly(out[begin:end], out, block) == is_wrong
    assert not overlaps_wrongly(torch.zeros(6)[begin:end], out, block)


def test_inputs_beside_the_output_in_one_storage_do_not_overlap():
    whole = torch.zeros(8)
    assert not overlaps_wrongly(whole[:2], whole[2:], None)
    assert not overlaps_wrongly(whole[6:], whole[:6], 0)


def test_reductions_have_the_meaning_of_torch():
    names = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}
    names |= {"BAND": "band", "BOR": "bor", "BXOR": "bxor"}
    for name, own in names.items():
        kind = getattr(dist.ReduceOp, name)
        assert parse_reduction(kind) == parse_reduction(dist.ReduceOp(kind)) == own
    found = parse_reduction(dist._make_nccl_premul_sum(0.25))
    assert isinstance(found, Reduction)
    assert (found.name, found.factor) == ("premul_sum", 0.25)


def test_as_array_converts_every_dtype_that_numpy_has():
    for dtype in tensors._DTYPES:
        x = torch.zeros(2, dtype=dtype)
        array = tensors.as_array(x)
        assert (array is x) == (dtype is torch.bfloat16)
        assert dtype is torch.bfloat16 or array.ctypes.data == x.data_ptr()
