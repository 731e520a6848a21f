"""Shards and initial parameters, without MPI."""

from __future__ import annotations

import math
import resource

import pytest

from hpccoll.errors import UnavailableError, UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.train.options import GptConfig, MlpConfig, OptimizerConfig
from hpccoll.train.text import load_text

torch = pytest.importorskip("torch")

from hpccoll.train.gradient_check import (  # noqa: E402
    TOLERANCE,
    GradientCheck,
    compare_gradients,
    count_replica_differences,
)
from hpccoll.train.model import make_model  # noqa: E402 - torch may not be here
from hpccoll.train.optimizer import ShardOptimizer, compute_lr_factor  # noqa: E402
from hpccoll.train.trainer import keep_freed_memory  # noqa: E402

MESHES = [
    *(Mesh(), Mesh(tp=3), Mesh(pp=3), Mesh(2, 2, 2), Mesh(tp=5, pp=2)),
    *(Mesh(pp=2, stage_ranks=(0, 1, 0)), Mesh(dp=2, pp=1, stage_ranks=(0, 0))),
]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "mlp", [MlpConfig(width=7, layers=4), MlpConfig(width=10, layers=5), MlpConfig(width=6, layers=3)]
)
def test_the_shards_of_a_replica_make_the_full_model(mesh, mlp):
    seen = {
        piece.name: torch.zeros(piece.full_shape, dtype=torch.int64) for piece in make_model(mlp).list_full_parameters()
    }
    for rank in range(mesh.ranks):
        if mesh.get_coordinates(rank)["dp"]:
            continue
        for piece in make_model(mlp).list_shards(mesh, rank):
            if not piece.is_copy:
                seen[piece.name][piece.slices] += 1
    assert all(bool((each == 1).all()) for each in seen.values())


@pytest.mark.parametrize("activation", GptConfig.activations)
@pytest.mark.parametrize("mesh", [Mesh(tp=4), Mesh(2, 2, 2), Mesh(tp=3, pp=2, stage_ranks=(0, 1, 1, 0))])
def test_the_shards_of_a_gpt_make_the_full_model(mesh, activation):
    gpt = GptConfig(width=8, layers=5, heads=4, context=3, activation=activation)
    seen = {
        piece.name: torch.zeros(piece.full_shape, dtype=torch.int64) for piece in make_model(gpt).list_full_parameters()
    }
    for rank in range(mesh.ranks):
        if mesh.get_coordinates(rank)["dp"]:
            continue
        for piece in make_model(gpt).list_shards(mesh, rank):
            if not piece.is_copy:
                seen[piece.name][piece.slices] += 1
    assert all(bool((each == 1).all()) for each in seen.values())
    assert sum(each.numel() for each in seen.values()) == gpt.parameter_count


def test_text_is_cut_into_windows_and_a_tenth_is_held_out(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(bytes(range(100)))
    train, held_out = load_text(4, str(file))
    assert (len(train), len(held_out)) == (22, 2)
    assert train.inputs[1].tolist() == [4, 5, 6, 7]
    assert train.targets[1].tolist() == [5, 6, 7, 8]
    assert held_out.inputs[0].tolist() == [90, 91, 92, 93]
    with pytest.raises(UsageError, match="has 100 bytes, of which 10 are held out; --context 10 needs at least 11"):
        load_text(10, str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        load_text(4, str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="give a longer file as --data, or a smaller --context"):
        load_text(10**7)
    train, held_out = load_text(128)
    assert len(train) > 5 * len(held_out) > 2000


def test_a_python_without_its_sources_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(UnavailableError, match=r"needs .*_pydecimal.py, which this Python does not have; give a file"):
        load_text(8)


def test_layers_and_shards_start_with_different_parameters():
    full = make_model(MlpConfig(width=64, layers=4)).init_parameters(0, torch.float64)
    weights = [full[f"layers.{layer}.weight"] for layer in range(3)]
    assert not any(bool((a == b).any()) for a, b in [(weights[0], weights[1]), (weights[1], weights[2])])
    top, bottom = weights[1].split(32)
    assert not bool((top == bottom).any())
    for name, each in full.items():
        into = 64
        assert float(each.abs().max()) <= into**-0.5, name
        if each.numel() > 1000:
            assert float(each.std()) == pytest.approx(into**-0.5 / 3**0.5, rel=0.05)
    single = make_model(MlpConfig(width=64, layers=4)).init_parameters(0, torch.float32)
    assert all(bool((single[name] == each.to(torch.float32)).all()) for name, each in full.items())


@pytest.mark.parametrize("resumed_at", [0, 1, 5])
def test_an_optimizer_that_resumes_takes_the_steps_of_torch(resumed_at):
    config = OptimizerConfig("adamw", lr=0.1, warmup=2, decay="cosine")
    factors = [1 / 3, 2 / 3, *((1 + math.cos(math.pi * done / 4)) / 2 for done in range(4))]
    whole, own = (torch.ones(5, dtype=torch.float64).requires_grad_() for _ in range(2))
    expected, found = torch.optim.AdamW([whole]), ShardOptimizer(config, [own], len(factors))
    gradients = torch.randn(len(factors), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for step, gradient in enumerate(gradients):
        if step == resumed_at:
            own = own.detach().clone().requires_grad_()
            found = ShardOptimizer(config, [own], len(factors), step, found.state)
        whole.grad, own.grad = gradient, gradient.clone()
        expected.param_groups[0]["lr"] = config.lr * factors[step]
        expected.step()
        found.apply()
        assert torch.allclose(own, whole, rtol=1e-12, atol=0), step
    assert compute_lr_factor(3 * len(factors), config, len(factors)) == 0


@pytest.mark.parametrize(("dtype", "small"), [("float32", 1e-4), ("float64", 1e-11)])
def test_small_differences_of_gradients_are_counted_on_all_ranks(dtype, small):
    model, mesh = make_model(MlpConfig(width=4, layers=2)), Mesh(dp=2)
    shapes = {piece.name: piece.full_shape for piece in model.list_full_parameters()}
    expected = {name: torch.full(shape, 2.0, dtype=getattr(torch, dtype)) for name, shape in shapes.items()}
    ranks = [[expected[piece.name].clone() for piece in model.list_shards(mesh, rank)] for rank in range(2)]
    assert compare_gradients(model, mesh, ranks, expected, TOLERANCE[dtype]) == GradientCheck(0, 0.0, None)
    ranks[1][2][3] *= 1 + small
    found = compare_gradients(model, mesh, ranks, expected, TOLERANCE[dtype])
    assert (found.wrong, found.first) == (4, "layers.1.weight on rank 1")
    assert found.error == pytest.approx(small, rel=1e-2)
    ranks[1][3][0] = math.nan
    assert compare_gradients(model, mesh, ranks, expected, TOLERANCE[dtype]).wrong == 5


def test_replicas_are_compared_bit_by_bit():
    model, mesh = make_model(MlpConfig(width=4, layers=2)), Mesh(dp=2)
    full = {piece.name: torch.zeros(piece.full_shape) for piece in model.list_full_parameters()}
    ranks = [[torch.zeros(piece.shape) for piece in model.list_shards(mesh, rank)] for rank in range(2)]
    assert count_replica_differences(model, mesh, ranks, full) == 0
    ranks[1][0].flatten()[1] = -0.0
    assert count_replica_differences(model, mesh, ranks, full) == 1


def test_freed_memory_is_kept_for_new_tensors():
    keep_freed_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [torch.ones(1 << 21) for _ in range(4)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 40_000, f"{faults} page faults in ten times four tensors of 2,048 pages"
