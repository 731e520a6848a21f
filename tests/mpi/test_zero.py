"""ZeRO: ranks that share the state of training train as if each held all of it; they send and allocate as estimated."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import hpccoll

torch = pytest.importorskip("torch")

from hpccoll.parallel.axis_group import AxisGroup  # noqa: E402 - torch may not be here
from hpccoll.parallel.mesh import Mesh  # noqa: E402
from hpccoll.parallel.zero import ZeroShards, ZeroUnit  # noqa: E402
from hpccoll.sizing import Precision  # noqa: E402
from hpccoll.sizing.memory import compute_memory, compute_state_bytes  # noqa: E402
from hpccoll.train.checkpoint import CheckpointDirectory  # noqa: E402
from hpccoll.train.estimated_setup import make_training_setup  # noqa: E402
from hpccoll.train.options import (  # noqa: E402
    OPTIMIZERS,
    CourseConfig,
    ExpertConfig,
    GptConfig,
    MlpConfig,
    TrainOptions,
)
from hpccoll.train.start import load_start  # noqa: E402
from hpccoll.train.trainer import Trainer  # noqa: E402

STEPS = 3
# Neither the ranks nor the shards divide the parameters.
UNEVEN = TrainOptions(MlpConfig(width=11), STEPS, batch=19, microbatches=2, dtype="float64")
SMALL = GptConfig(context=5, width=8, heads=2)
GPT = replace(UNEVEN, model=SMALL, optimizer=replace(OPTIMIZERS["adamw"], warmup=1))
EVEN = TrainOptions(CourseConfig(width=64, layers=4), STEPS, batch=16, microbatches=2, dtype="float32")
EXPERTS = replace(GPT, model=replace(SMALL, experts=ExpertConfig(4, capacity_factor=0.7)))
# For sgd, for adamw, and for experts, which ranks hold alone if dp is 1.
MESHES = {2: ["dp", "dp", "ep"], 3: ["dp", "dp", "dp"], 4: ["dp=2,tp=2", "dp=2,pp=2", "dp=2,ep=2"]}


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    torch.set_num_threads(1)
    with hpccoll.Communicator(comm) as made:
        yield made


@pytest.fixture
def trainer(hpc):
    """Make trainers, whose groups are freed at the end."""
    made = []

    def make(mesh, options, **more):
        made.append(Trainer(hpc, mesh, options, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def copy_parameters(trainer):
    with trainer.replicas.gathered():
        return torch.cat([x.detach().reshape(-1) for x in trainer.layers.parameters])


@pytest.mark.parametrize(
    ("at", "options", "levels"),
    [(0, UNEVEN, (1, 2, 3)), (1, GPT, (1, 3)), (2, EXPERTS, (2,))],
    ids=["sgd", "adamw", "experts"],
)
def test_every_level_trains_as_replicas_do_and_resumes_from_each_others_checkpoints(
    hpc, trainer, tmp_path, at, options, levels
):
    directory = CheckpointDirectory(tmp_path / "state") if hpc.rank == 0 else None
    if isinstance(options.model, GptConfig):  # a text of few samples to evaluate
        (tmp_path / "text").write_bytes(bytes(range(250)) * 4)
        options = replace(options, model=replace(options.model, data=str(tmp_path / "text")))
    for strategy in MESHES.get(hpc.size, [])[at : at + 1]:
        mesh = Mesh.parse(strategy, hpc.size)
        replicas = trainer(mesh, options)
        expected = list(replicas.run_steps())
        for level in levels:
            ours = trainer(
                mesh, replace(options, zero=level, seed=level)
            )  # the seed makes the checkpoint the run's own
            assert ours.check_gradients().wrong == 0
            ours.close()
            sharded = trainer(mesh, replace(options, zero=level))
            records = list(islice(sharded.run_steps(), 1))
            sharded.save_checkpoint(directory)
            start = load_start(hpc, sharded.options, directory)[0]
            assert start.step == 1
            records += sharded.run_steps()
            for own, other in zip(records, expected, strict=True):
                assert own.loss == pytest.approx(other.loss, rel=1e-12)
                assert own.grad_norm == pytest.approx(other.grad_norm, rel=1e-12)
            whole = copy_parameters(sharded)
            assert torch.allclose(whole, copy_parameters(replicas), rtol=0, atol=1e-12), (strategy, level)
            assert sharded.evaluate()[0] == pytest.approx(replicas.evaluate()[0], rel=1e-12)
            resumed, other = (trainer(mesh, replace(options, zero=to), start=start) for to in (level, level - 1))
            list(resumed.run_steps())
            list(other.run_steps())
            assert torch.equal(copy_parameters(resumed), whole), (strategy, level)
            assert torch.allclose(copy_parameters(other), whole, rtol=0, atol=1e-12), (strategy, level)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_ranks_send_and_allocate_as_estimated(hpc, trainer, level):
    n, model = hpc.size, EVEN.model
    if n == 1 or 64 % n:
        return
    ours = trainer(Mesh(dp=n), replace(EVEN, zero=level, optimizer=OPTIMIZERS["adamw"]))
    *_, record = ours.run_steps()
    m, nbytes = EVEN.count_microbatches(Mesh(dp=n)), 4 * model.parameter_count
    sent = (n - 1) / n * nbytes
    reductions, gathers = (1 if level == 1 else m), (2 * m if level == 3 else 1)
    assert record.sent_bytes == {"dp": {"all_gather": gathers * sent, "reduce_scatter": reductions * sent}}
    found = ours.allocated_bytes
    state = compute_state_bytes(model.parameter_count, level, n, Precision("float32"))
    assert (found.weights, found.gradients, found.optimizer) == (state.weights, state.gradients, state.optimizer)
    layer = nbytes / model.layers
    # ZeRO-2 and 3: the gradients of a layer, and a shard for the addend of a later micro-batch.
    # ZeRO-3: the weights of two layers.
    assert found.buffers == (layer + layer / n if level > 1 else 0) + (2 * layer if level == 3 else 0)


@pytest.mark.parametrize("level", [2, 3])
def test_a_gpt_allocates_as_estimated(hpc, trainer, level):
    if hpc.size != 2:
        return
    options = TrainOptions(GptConfig(), 1, batch=8, zero=level, optimizer=OPTIMIZERS["adamw"])
    ours = trainer(Mesh(dp=2), options)
    list(ours.run_steps())
    estimated = compute_memory(make_training_setup(options, Mesh(dp=2))).total
    assert ours.allocated_bytes.total == pytest.approx(estimated, rel=0.05)


def forget_other_ranks_gradients(patch):
    original = AxisGroup.start_reduce_scatter

    def start(self, x, out):
        kept = x[self.index * len(out) : (self.index + 1) * len(out)].clone()
        work = original(self, x, out)
        self.finish(work)
        out.copy_(kept)
        return work

    patch.setattr(AxisGroup, "start_reduce_scatter", start)


def forget_later_microbatches(patch):
    original = ZeroUnit.move_gradients

    def move(self, flat):
        original(self, flat)
        flat.mul_(self.reductions <= 1)

    patch.setattr(ZeroUnit, "move_gradients", move)


def forget_parameters_of_other_ranks(patch):
    patch.setattr(ZeroShards, "gather_parameters", lambda _: None)


@pytest.mark.parametrize(
    ("plant", "level"),
    [
        (forget_other_ranks_gradients, 1),
        (forget_other_ranks_gradients, 3),
        (forget_later_microbatches, 2),
        (forget_parameters_of_other_ranks, 2),
    ],
)
def test_the_check_finds_injected_faults(hpc, trainer, monkeypatch, plant, level):
    if hpc.size == 1:
        return
    plant(monkeypatch)
    # More layers of one size than ZeRO-3 has buffers for them.
    model = MlpConfig(width=11, layers=7)
    ours = trainer(Mesh(dp=hpc.size), replace(UNEVEN, model=model, microbatches=3, zero=level))
    next(ours.run_steps())
    assert ours.check_gradients().wrong > 0


def test_autograd_keeps_no_views_of_freed_parameters(hpc, trainer, monkeypatch):
    if hpc.size == 1:
        return
    release, freed = ZeroShards._release, []

    def overwrite(self, unit):
        freed.append(unit.whole)
        release(self, unit)
        if unit.whole is None and freed[-1] is not None:
            self._free[unit.count].pop().numpy().fill(np.nan)  # shows where freed memory is still used

    monkeypatch.setattr(ZeroShards, "_release", overwrite)
    options = replace(UNEVEN, zero=3)
    assert trainer(Mesh(dp=hpc.size), options).check_gradients().wrong == 0
    assert freed
    monkeypatch.setattr(ZeroShards, "_pack", lambda _, x: x.detach())
    assert trainer(Mesh(dp=hpc.size), options).check_gradients().wrong > 0


def test_shards_are_symmetric_buffers_and_gathered_parameters_are_freed(hpc, trainer):
    """Ranks of a node read each other's shards in place."""
    from hpccoll.runtime.node_memory.symmetric import shared_buffers

    if hpc.size == 1:
        return
    ours = trainer(Mesh(dp=hpc.size), replace(EVEN, zero=3))
    list(ours.run_steps())
    assert all(shared_buffers().find(shard.data_ptr()) is not None for shard in ours.replicas.shards)
    assert all(x.untyped_storage().nbytes() <= 4 for x in ours.layers.parameters)
    shapes = [shard.shape for shard in ours.layers.shards]
    assert [tuple(x.shape) for x in ours.layers.parameters] == shapes
    assert np.isfinite(ours.evaluate()[0])


@pytest.mark.needs_ranks(2)
def test_gathered_parameters_are_freed_if_the_body_raises(hpc, trainer):
    shards = trainer(Mesh(dp=hpc.size), replace(EVEN, zero=3)).replicas
    with pytest.raises(ZeroDivisionError), shards.gathered():
        1 / 0  # noqa: B018 - raises
    assert all(unit.whole is None for unit in shards.units)
    with shards.gathered():
        assert all(unit.whole is not None for unit in shards.units)
    assert all(unit.whole is None for unit in shards.units)
