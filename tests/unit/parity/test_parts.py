"""Shards are found in whole parameters, functions are loaded, and faults are told apart, without MPI."""

from __future__ import annotations

import pytest

from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh

torch = pytest.importorskip("torch")

from hpccoll.parity.case import build_case, load_build_function  # noqa: E402 - torch may not be here
from hpccoll.parity.diagnosis import find_permuted_shards  # noqa: E402
from hpccoll.parity.fault import ComparedTensor, FoundShard  # noqa: E402
from hpccoll.parity.shard_location import ShardIndex, locate_shard  # noqa: E402
from hpccoll.parity.simulated_faults import _format_layers  # noqa: E402
from hpccoll.parity.tensor_faults import find_factor, find_missing_reduction, list_factors  # noqa: E402

WHOLE = torch.arange(24.0).reshape(6, 4)


def test_a_shard_is_found_by_its_values_also_if_its_rows_are_not_adjacent():
    index = locate_shard(WHOLE, WHOLE[[0, 1, 4]], None, 0)
    assert (index.dim, index.rows.tolist()) == (0, [0, 1, 4])
    assert torch.equal(index.take(WHOLE), WHOLE[[0, 1, 4]])
    assert locate_shard(WHOLE, WHOLE[:, 2:], None, 0).rows.tolist() == [2, 3]
    assert locate_shard(WHOLE, WHOLE.clone(), None, 0).dim is None


def test_values_that_are_not_in_the_whole_parameter_are_not_found():
    assert locate_shard(WHOLE, WHOLE + 1, None, 0) is None
    assert locate_shard(WHOLE, WHOLE[:3] + 0.5, None, 0) is None
    assert locate_shard(WHOLE, WHOLE[:2, :2], None, 0) is None


def test_a_constant_bias_has_the_rows_of_its_weight_or_of_its_rank():
    bias = torch.zeros(6)
    assert locate_shard(bias, bias[:3], ShardIndex(0, torch.tensor([0, 2, 4])), 1).rows.tolist() == [0, 2, 4]
    assert locate_shard(bias, bias[:3], None, 1).rows.tolist() == [3, 4, 5]


def test_only_some_of_the_shards_are_not_the_whole_tensor():
    shards = [FoundShard(0, ShardIndex(0, torch.tensor([0, 1, 2])), WHOLE[:3])]
    assert not ComparedTensor("x", WHOLE, shards, 0.0).is_complete
    shards.append(FoundShard(1, ShardIndex(0, torch.tensor([3, 4, 5])), WHOLE[3:]))
    tensor = ComparedTensor("x", WHOLE, shards, 0.0)
    assert tensor.is_complete
    assert torch.equal(tensor.assemble(), WHOLE)
    assert not tensor.differing
    assert tensor.error == 0


def test_only_some_tensors_in_another_order_than_the_ranks_are_a_fault():
    halves = [ShardIndex(0, torch.tensor(rows)) for rows in ([0, 1, 2], [3, 4, 5])]
    ordered, permuted = (
        ComparedTensor(name, WHOLE, [FoundShard(rank, index, index.take(WHOLE)) for rank, index in enumerate(own)], 0.0)
        for name, own in (("a", halves), ("b", halves[::-1]))
    )
    fault = find_permuted_shards(Mesh(tp=2), {"a": ordered, "b": permuted})
    assert fault.text == "the shards of b are not in the order of the ranks of tp"
    assert find_permuted_shards(Mesh(tp=2), {"a": ordered}) is None
    assert find_permuted_shards(Mesh(tp=2), {"b": permuted}) is None


def test_one_layer_has_its_name_and_several_are_like_the_first():
    assert _format_layers(["layers.0.weight"]) == "layers.0"
    assert _format_layers(["layers.0.weight", "layers.1.weight"]) == "each layer like layers.0"


def make_tensor(*values, bound=1e-9):
    """Return a tensor in one process and its copies on the ranks, which have the given values."""
    shards = [FoundShard(rank, ShardIndex(), each) for rank, each in enumerate(values)]
    return ComparedTensor("x", WHOLE, shards, bound)


def test_a_factor_is_named_by_what_it_counts():
    factors = list_factors(Mesh(dp=2), microbatches=3, samples=24)
    assert find_factor(make_tensor(WHOLE * 3, WHOLE * 3), factors).kind == "factor_microbatches"
    assert find_factor(make_tensor(WHOLE / 2, WHOLE / 2), factors).kind == "factor_inverse_dp"
    assert find_factor(make_tensor(WHOLE * 24, WHOLE * 24), factors).kind == "factor_samples"
    assert find_factor(make_tensor(WHOLE * 12, WHOLE * 12), factors).kind == "factor_local_samples"
    assert find_factor(make_tensor(WHOLE * 1.7, WHOLE * 1.7), factors).kind == "factor"
    assert find_factor(make_tensor(WHOLE * 3, WHOLE), factors) is None


def test_a_missing_sum_is_told_from_a_missing_average():
    part = torch.rand(6, 4)
    assert find_missing_reduction(make_tensor(part, WHOLE - part), Mesh(tp=2)).kind == "missing_sum_tp"
    assert find_missing_reduction(make_tensor(part, 2 * WHOLE - part), Mesh(dp=2)).kind == "missing_average_dp"
    assert find_missing_reduction(make_tensor(part, part), Mesh(dp=2)) is None


def test_nan_and_another_shape_are_differences():
    assert make_tensor(WHOLE * float("nan")).differing
    assert make_tensor(WHOLE[:3]).differing


def test_a_function_is_loaded_from_a_file_or_a_module(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def build():\n    return 3\n")
    assert load_build_function(f"{file}:build").__name__ == "build"
    assert load_build_function("math:floor").__name__ == "floor"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("build", "name a function, as in build:build"),
        ("missing.py:build", "missing.py cannot be read"),
        ("no_such_module:build", "No module named 'no_such_module'; write FILE.py:FUNCTION"),
        ("math:flor", "math has no function 'flor'; it has"),
    ],
)
def test_what_cannot_be_loaded_is_a_usage_error(reference, message):
    with pytest.raises(UsageError, match=message):
        load_build_function(reference)


def test_an_error_in_the_file_names_its_line(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("x = 1\ny = undefined\n")
    with pytest.raises(UsageError, match="line 2"):
        load_build_function(f"{file}:build")


def test_a_missing_import_of_the_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "own_parity_case.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="No module named 'no_such_dependency'; install what own_parity_case imports"):
        load_build_function("own_parity_case:build")


def test_a_function_must_return_a_case():
    with pytest.raises(UsageError, match="returned int; return hpccoll"):
        build_case(lambda: 3, seed=0)  # type: ignore[arg-type,return-value]
