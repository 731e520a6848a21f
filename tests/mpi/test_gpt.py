"""The trainer has the losses, gradients and parameters of models of torch.nn in one process; the GPT learns."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hpccoll
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import REPLICAS, Mesh
from hpccoll.train.options import CourseConfig, ExpertConfig, GptConfig, TrainOptions

torch = pytest.importorskip("torch")

from hpccoll.parallel import (  # noqa: E402 - torch may not be here
    axis_group,
    pipeline_parallel,
    sequence_parallel,
    tensor_parallel,
    weight_gradients,
)
from hpccoll.parallel.axis_group import AxisGroup  # noqa: E402
from hpccoll.train import gpt  # noqa: E402
from hpccoll.train.trainer import Trainer  # noqa: E402
from tests.mpi import train_parity  # noqa: E402

CONFIG = GptConfig(width=16, layers=2, heads=4, context=8)
EXPERT_MESHES = {2: ["ep", "cp"], 4: ["ep=2,tp=2", "cp=2,ep=2"]}
MESHES = {1: ["dp"], 2: ["tp", "dp", "pp"], 3: ["dp"], 4: ["tp", "dp=2,tp=2", "tp=2,pp=2"]}


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    torch.set_num_threads(1)
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.mark.parametrize("count", [6, pytest.param(90, marks=pytest.mark.full)])
def test_it_trains_as_in_one_process(hpc, count):
    cases = train_parity.list_cases(hpc.size)
    for case in cases[:: -(-len(cases) // count)]:
        summary = train_parity.compare(hpc, case)
        assert summary.wrong == 0, (str(case), summary)
        assert summary.tensors > 12


def make_case(mesh, model, **options):
    return train_parity.TrainCase(mesh, TrainOptions(model, 9, batch=9, dtype="float64", **options))


GPT4 = replace(CONFIG, layers=4)
COURSE = CourseConfig(width=9, split="all_gather")


def forget_the_tied_weight(patch):
    """The gradient of the head is not added to that of the embedding."""
    original = AxisGroup.all_reduce
    patch.setattr(
        AxisGroup, "all_reduce", lambda self, x, op="sum": x if x.shape == (256, 16) else original(self, x, op)
    )


def drop_a_deferred_gradient(patch):
    patch.setattr(
        pipeline_parallel, "add_weight_gradients", lambda them: weight_gradients.add_weight_gradients(them[1:])
    )


def slice_what_is_to_be_summed(patch):
    """The all_gather's backward pass for a duplicated computation, although each rank has an addend."""

    def backward(ctx, grad):
        return grad.split(ctx.features, 1)[ctx.tp.index].contiguous(), None, None, None

    patch.setattr(tensor_parallel._GatherFromTensorParallel, "backward", staticmethod(backward))


def sum_norms_over_dp_only(patch):
    patch.setattr(axis_group, "TOKEN_REPLICAS", REPLICAS)


def gather_no_gradients(patch):
    """The backward pass of a reduce_scatter returns zeros for the tokens of other ranks."""

    def backward(ctx, grad):
        found = grad.new_zeros(len(grad), grad.shape[1] * ctx.tp.size, grad.shape[2])
        sequence_parallel.take_own_tokens(found, ctx.tp).copy_(grad)
        return found, None

    patch.setattr(sequence_parallel._SumToOwnTokens, "backward", staticmethod(backward))


SEQUENCE_PARALLEL = make_case(Mesh(tp=2), CONFIG, sequence_parallel=True)


def keep_all_tokens(patch):
    patch.setattr(ExpertConfig, "compute_capacity", lambda self, tokens: tokens)


def forget_the_balance_loss(patch):
    patch.setattr(gpt, "add_to_loss", lambda x, loss: x)


def sum_different_experts(patch):
    """Gradients of experts are summed over all replicas of the other parameters."""
    patch.setattr(axis_group, "EXPERT_REPLICAS", REPLICAS)


def return_outputs_to_other_tokens(patch):
    """Rows from several ranks return in the order in which the experts computed them."""
    argsort = torch.Tensor.argsort
    patch.setattr(torch.Tensor, "argsort", lambda self, stable=None: argsort(self, stable=True) if stable else self)


def sum_equal_gradients(patch):
    """The gradients of the router's outputs are summed over tp, although they are the same on all ranks."""
    gather = sequence_parallel.gather_tokens
    patch.setattr(gpt, "gather_tokens", lambda x, tp, has_addends: gather(x, tp, has_addends=True))


def route_all_positions(patch):
    """The reference routes all positions of the samples as one group."""
    patch.setattr(train_parity, "list_position_groups", lambda context, cp: [torch.arange(context)])


MIXTURE = make_case(Mesh(ep=2), replace(CONFIG, experts=ExpertConfig(4, capacity_factor=0.7)))
SEQUENCE_PARALLEL_MIXTURE = make_case(Mesh(tp=2), MIXTURE.options.model, sequence_parallel=True)


@pytest.mark.parametrize(
    ("plant", "case", "named"),
    [
        (sum_norms_over_dp_only, SEQUENCE_PARALLEL, "weight"),
        (gather_no_gradients, SEQUENCE_PARALLEL, "weight"),
        (sum_equal_gradients, SEQUENCE_PARALLEL_MIXTURE, ""),
        (route_all_positions, make_case(Mesh(cp=2), MIXTURE.options.model), ""),
        (keep_all_tokens, MIXTURE, ""),
        (forget_the_balance_loss, MIXTURE, ""),
        (sum_different_experts, MIXTURE, "experts"),
        (return_outputs_to_other_tokens, MIXTURE, ""),
        (forget_the_tied_weight, make_case(Mesh(pp=2), CONFIG), "embedding.weight"),
        (drop_a_deferred_gradient, make_case(Mesh(pp=2), CONFIG, schedule="zb_h1"), "weight"),
        (drop_a_deferred_gradient, make_case(Mesh(pp=2), GPT4, schedule="zbv", recompute=True), "weight"),
        (slice_what_is_to_be_summed, make_case(Mesh(tp=2), COURSE), "layers.0.weight"),
    ],
)
@pytest.mark.needs_ranks(2, 2)
def test_faults_in_its_gradients_are_found(hpc, monkeypatch, plant, case, named):
    assert train_parity.compare(hpc, case).wrong == 0
    plant(monkeypatch)
    summary = train_parity.compare(hpc, case)
    assert summary.wrong > 0
    assert named in (summary.first or "")


@pytest.mark.parametrize("model", [CONFIG, CourseConfig(width=9, layers=5), MIXTURE.options.model])
def test_the_trainer_finds_no_wrong_gradient_and_learns(hpc, tmp_path, model):
    has_experts = isinstance(model, GptConfig) and model.experts
    if isinstance(model, GptConfig):  # a text of few samples to evaluate
        (tmp_path / "text").write_bytes(b"Ranks train. " * 80)
        model = replace(model, data=str(tmp_path / "text"))
    for strategy in EXPERT_MESHES.get(hpc.size, ["tp"]) if has_experts else MESHES.get(hpc.size, ["dp"]):
        mesh = Mesh.parse(strategy, hpc.size)
        trainer = Trainer(hpc, mesh, TrainOptions(model, steps=6, batch=12, dtype="float64"))
        check = trainer.check_gradients()
        assert (check.wrong, check.first) == (0, None)
        losses = [record.loss for record in trainer.run_steps()]
        assert losses[-1] < losses[0]
        assert 0 < trainer.evaluate()[0] < 1.5 * losses[0]
        trainer.close()


@pytest.mark.parametrize(
    ("mesh", "model", "message"),
    [
        (Mesh(tp=3), GptConfig(), "tp=3 ranks cannot share --heads 4 equally; give --heads 3 or 6, or tp=2 or 4"),
        (Mesh(pp=4), GptConfig(), "pp=4 stages cannot share 3 layers; give --layers 4 or more"),
        (Mesh(), GptConfig(width=30), "--width 30 cannot be shared by --heads 4; give --width 28 or 32"),
    ],
)
@pytest.mark.needs_ranks(1, 1)
def test_a_mesh_that_does_not_fit_is_refused(mesh, model, message):
    with pytest.raises(UsageError, match=message):
        TrainOptions(model, 1).require_mesh_fits(mesh)
