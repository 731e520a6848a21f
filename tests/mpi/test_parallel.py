"""Training over a mesh: all ranks' gradients, and the parameters after some steps, equal those of one process.

Loss curves do not show a gradient that is wrong by a factor. Therefore every element is compared with torch.nn in one
process.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import UsageError, WrongResultError
from hpccoll.parallel.mesh import Mesh
from hpccoll.train.options import OPTIMIZERS, GptConfig, MlpConfig, OptimizerConfig, TrainOptions

torch = pytest.importorskip("torch")

from hpccoll.parallel import data_parallel, tensor_parallel  # noqa: E402 - torch may not be here
from hpccoll.parallel.axis_group import AxisGroup  # noqa: E402
from hpccoll.train import full_parameters  # noqa: E402
from hpccoll.train import trainer as training  # noqa: E402
from hpccoll.train.checkpoint import CheckpointDirectory  # noqa: E402
from hpccoll.train.model import make_model  # noqa: E402
from hpccoll.train.perceptron import MlpLayers, MlpModel  # noqa: E402
from hpccoll.train.start import load_start  # noqa: E402

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
STEPS = 5
MESHES = {
    1: ["dp"],
    2: ["dp", "tp", "pp"],
    3: ["dp", "tp", "pp"],
    4: ["dp", "tp", "pp", "dp=2,tp=2", "dp=2,pp=2", "tp=2,pp=2"],
    8: ["dp=2,tp=2,pp=2", "tp=4,pp=2"],
}
EVEN = TrainOptions(MlpConfig(width=16, layers=4), STEPS, batch=16, microbatches=2, dtype="float64")
# A batch, micro-batches, a width and layers that neither two, three nor four divide.
UNEVEN = TrainOptions(
    MlpConfig(width=11, layers=5, activation="gelu"), STEPS, seed=3, batch=19, microbatches=3, dtype="float64"
)
CASES = {
    "even": EVEN,
    "uneven": UNEVEN,
    "float32": replace(EVEN, dtype="float32"),
    "gpipe": replace(UNEVEN, schedule="gpipe"),
    "whole_batch": replace(UNEVEN, microbatches=1),
    "bucket_per_tensor": replace(UNEVEN, bucket_bytes=1),
}


@pytest.fixture
def hpc(comm):
    """A communicator of hpccoll over all ranks."""
    with hpccoll.Communicator(comm) as made:
        yield made


def meshes(hpc):
    return [Mesh.parse(strategy, hpc.size) for strategy in MESHES.get(hpc.size, ["dp", "tp"])]


SCHEDULES = [
    "zbv",
    *(
        pytest.param(name, marks=pytest.mark.full_except_on(2))
        for name in ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1", "dualpipev")
    ),
]


@pytest.fixture
def trainer(hpc):
    """Make trainers; their groups are given back in the end."""
    made = []

    def make(mesh, settings, **more):
        settings.require_mesh_fits(mesh)
        made.append(training.Trainer(hpc, mesh, settings, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


class OneProcess:
    """The same model in torch.nn, trained on whole batches by torch.optim."""

    def __init__(self, settings):
        mlp, dtype = settings.model, getattr(torch, settings.dtype)
        between = {"tanh": torch.nn.Tanh, "gelu": torch.nn.GELU}[mlp.activation]
        linears = [torch.nn.Linear(*reversed(mlp.weight_shape(layer)), dtype=dtype) for layer in range(mlp.layers)]
        self.model = torch.nn.Sequential(*[part for each in linears for part in (each, between())][:-1])
        full = make_model(mlp).init_parameters(settings.seed, dtype)
        with torch.no_grad():
            for layer, linear in enumerate(linears):
                linear.weight.copy_(full[f"layers.{layer}.weight"])
                linear.bias.copy_(full[f"layers.{layer}.bias"])
        self.named = {
            f"layers.{n}.{what}": getattr(each, what) for n, each in enumerate(linears) for what in each._parameters
        }
        is_adamw = settings.optimizer.name == "adamw"
        kind = torch.optim.AdamW if is_adamw else torch.optim.SGD
        self.optimizer = kind(self.model.parameters(), lr=settings.optimizer.lr)
        self.dtype = dtype

    def gradients(self, images, labels):
        self.optimizer.zero_grad()
        y = self.model(torch.from_numpy(images).to(self.dtype))
        loss = torch.nn.functional.cross_entropy(y, torch.from_numpy(labels))
        loss.backward()
        return loss.item()

    def apart(self, trainer, what):
        """Return the largest difference of any element, over the largest of its parameter, on this rank."""
        worst = 0.0
        for piece, mine in zip(trainer.layers.shards, trainer.layers.parameters, strict=True):
            wanted, found = (
                each.grad if what == "gradients" else each.detach() for each in (self.named[piece.name], mine)
            )
            difference = (found - wanted[piece.slices]).abs().max() / wanted.abs().max()
            worst = max(worst, float(difference))
        return worst


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_parameters_equal_those_of_one_process(hpc, trainer, case):
    settings = CASES[case]
    for mesh in meshes(hpc):
        ours, one = trainer(mesh, settings), OneProcess(settings)
        for _ in range(STEPS):
            wanted = one.gradients(*ours.get_next_batch())
            loss = ours.compute_gradients()
            assert one.apart(ours, "gradients") <= TOLERANCE[settings.dtype], str(mesh)
            mine = loss if ours.coordinates["tp"] == 0 else 0.0
            assert hpc.all_reduce(np.array([mine]))[0] == pytest.approx(wanted, rel=1e-5), str(mesh)
            one.optimizer.step()
            ours.apply_gradients()
            assert one.apart(ours, "parameters") <= TOLERANCE[settings.dtype], str(mesh)


def test_adamw_updates_shards_like_full_parameters_with_warm_up_and_cosine_decay(hpc, trainer):
    settings = replace(UNEVEN, optimizer=OptimizerConfig("adamw", lr=0.02, warmup=2, decay="cosine"))
    factors = [1 / 3, 2 / 3, *((1 + math.cos(math.pi * done / 3)) / 2 for done in range(3))]
    for mesh in meshes(hpc):
        ours, one = trainer(mesh, settings), OneProcess(settings)
        for factor in factors:
            one.gradients(*ours.get_next_batch())
            one.optimizer.param_groups[0]["lr"] = 0.02 * factor
            ours.compute_gradients()
            assert ours.optimizer.lr == pytest.approx(0.02 * factor)
            one.optimizer.step()
            ours.apply_gradients()
            assert one.apart(ours, "parameters") <= 1e-11, str(mesh)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_computes_the_gradients_of_one_process(hpc, trainer, schedule):
    model = MlpConfig(width=11, layers=2 * hpc.size + 1, activation="gelu")
    settings = replace(UNEVEN, model=model, microbatches=2 * hpc.size, schedule=schedule)
    for strategy in ["pp", *(["pp=2,tp=2"] if hpc.size == 4 else [])]:
        ours, one = trainer(Mesh.parse(strategy, hpc.size), settings), OneProcess(settings)
        for _ in range(2):
            one.gradients(*ours.get_next_batch())
            ours.compute_gradients()
            assert one.apart(ours, "gradients") <= TOLERANCE["float64"], strategy
            one.optimizer.step()
            ours.apply_gradients()
        held = ours.held_out
        right = (one.model(torch.from_numpy(held.inputs)).argmax(1).numpy() == held.targets).mean()
        assert ours.evaluate()[1] == right


def test_a_schedule_file_is_executed(hpc, trainer, tmp_path):
    """Backward passes in another order than in any built-in schedule, split for inputs and weights."""
    file, m = tmp_path / f"rank{hpc.rank}.csv", 3
    passes = [*(f"F{each}" for each in range(m)), *(f"{kind}{each}" for kind in "IW" for each in (1, 2, 0))]
    file.write_text("\n".join(",".join(f"{rank}{each}" for each in passes) for rank in range(hpc.size)))
    settings = replace(UNEVEN, microbatches=m, schedule=str(file))
    ours, one = trainer(Mesh.parse("pp", hpc.size), settings), OneProcess(settings)
    assert ours.schedule.stages == hpc.size
    one.gradients(*ours.get_next_batch())
    ours.compute_gradients()
    assert one.apart(ours, "gradients") <= TOLERANCE["float64"]


def test_step_records_have_loss_norm_and_times_of_all_ranks(hpc, trainer):
    for mesh in meshes(hpc):
        ours, one = trainer(mesh, UNEVEN), OneProcess(UNEVEN)
        for step, record in enumerate(ours.run_steps(), 1):
            seen = ours.train.get_batch(UNEVEN.seed, (step - 1) * UNEVEN.batch, UNEVEN.batch)
            assert (record.step, record.loss) == (step, pytest.approx(one.gradients(*seen), rel=1e-12))
            norm = sum(float(each.grad.square().sum()) for each in one.named.values()) ** 0.5
            assert record.grad_norm == pytest.approx(norm, rel=1e-12)
            one.optimizer.step()
            assert 0 <= record.exposed_comm_s <= record.comm_s <= record.step_s
            assert (record.comm_s > 0) == (hpc.size > 1)
            assert (record.bubble is not None) == (mesh.pp > 1)
            assert record.peak_bytes > 1 << 20
            axes = {axis for axis in ("dp", "tp", "pp") if getattr(mesh, axis) > 1}
            assert set(record.sent_bytes) == axes
        assert ours.step == STEPS
        held, y = ours.held_out, one.model(torch.from_numpy(ours.held_out.inputs))
        assert ours.evaluate()[1] == (y.argmax(1).numpy() == held.targets).mean()


@pytest.mark.needs_ranks(2, 4)
@pytest.mark.parametrize(
    "model", [MlpConfig(layers=4), GptConfig(16, 4, heads=2, context=8)], ids=["independent", "tied"]
)
def test_waiting_for_another_stage_at_the_end_of_a_step_belongs_to_the_bubble(hpc, trainer, monkeypatch, model):
    ours, late_s = trainer(Mesh(pp=hpc.size), replace(EVEN, model=model, steps=2, microbatches=4)), 0.3
    finish = ours.replicas.finish

    def finish_late():
        time.sleep(late_s if hpc.rank == 0 else 0.0)
        finish()

    monkeypatch.setattr(ours.replicas, "finish", finish_late)
    _, record = ours.run_steps()  # all ranks meet at the end of the first step, to compare memory
    assert record.bubble * record.step_s * hpc.size > 0.9 * late_s * (hpc.size - 1)


@pytest.mark.parametrize("case", ["even", "uneven", "float32"])
def test_the_check_passes_for_right_gradients(hpc, trainer, case):
    for mesh in meshes(hpc):
        verdict = trainer(mesh, CASES[case]).check_gradients()
        assert verdict.wrong == 0
        assert verdict.error <= TOLERANCE[CASES[case].dtype]


def forget_the_sum_behind_a_layer(patch):
    patch.setattr(tensor_parallel._CopyToTensorParallel, "backward", staticmethod(lambda _, grad: (grad, None)))


def forget_the_sum_in_front(patch):
    patch.setattr(tensor_parallel._ReduceFromTensorParallel, "forward", staticmethod(lambda _, x, tp: x))


def forget_the_sum_of_gradients(patch):
    start = AxisGroup.start_all_reduce
    patch.setattr(AxisGroup, "start_all_reduce", lambda self, x: start(self, x.clone()))


def average_what_is_summed(patch):
    original = data_parallel.GradientBuckets.finish

    def divided(self):
        original(self)
        for buffer in self.buffers:
            buffer.div_(self.dp.size)

    patch.setattr(data_parallel.GradientBuckets, "finish", divided)


def sum_what_is_averaged(patch):
    sum_loss = MlpLayers.sum_loss
    patch.setattr(MlpLayers, "sum_loss", lambda layers, y, targets: sum_loss(layers, y, targets) * len(targets))


def begin_each_rank_by_itself(patch):
    rank = MPI.COMM_WORLD.rank
    original = MlpModel.init_parameters
    patch.setattr(MlpModel, "init_parameters", lambda model, seed, dtype: original(model, seed + rank, dtype))


PLANTED = [
    (forget_the_sum_behind_a_layer, ("tp",)),
    (forget_the_sum_in_front, ("tp",)),
    (forget_the_sum_of_gradients, ("dp",)),
    (average_what_is_summed, ("dp",)),
    (sum_what_is_averaged, ("dp", "tp", "pp")),
    (begin_each_rank_by_itself, ("dp",)),
]


@pytest.mark.parametrize(("plant", "axes"), PLANTED)
def test_the_check_finds_injected_faults(hpc, trainer, monkeypatch, plant, axes):
    plant(monkeypatch)
    tried = [mesh for mesh in meshes(hpc) if any(getattr(mesh, axis) > 1 for axis in axes)]
    for mesh in tried:
        verdict = trainer(mesh, EVEN).check_gradients()
        assert verdict.wrong > 0, str(mesh)
        assert verdict.error > 1e-3 or plant is begin_each_rank_by_itself


@pytest.mark.parametrize(
    ("optimizer", "model"),
    [
        ("sgd", UNEVEN.model),
        pytest.param(
            "adamw",
            GptConfig(width=24, layers=4, heads=12, context=8, activation="swiglu"),
            marks=pytest.mark.full_except_on(2),
        ),
    ],
)
def test_a_checkpoint_resumes_on_any_mesh(hpc, trainer, tmp_path, optimizer, model):
    # Other ranks have a directory of their own, without the file.
    state, every = tmp_path / "state", meshes(hpc)
    mine = CheckpointDirectory(state) if hpc.rank == 0 else None
    if isinstance(model, GptConfig):
        (tmp_path / "text").write_bytes(bytes(range(250)) * 4)
        model = replace(model, data=str(tmp_path / "text"), context=max(model.context, 2 * hpc.size))
        every.append(Mesh(cp=hpc.size))
    for mesh, following in zip(every, [*every[1:], every[0]], strict=True):
        chosen = replace(OPTIMIZERS[optimizer], warmup=1)
        settings = replace(UNEVEN, model=model, seed=mesh.dp + 10 * mesh.tp, optimizer=chosen)
        first, unbroken = trainer(mesh, settings), trainer(mesh, settings)
        assert len(list(islice(first.run_steps(), 2))) == 2
        first.save_checkpoint(mine)
        list(unbroken.run_steps())
        for other in every if mesh.cp > 1 else dict.fromkeys((mesh, following, every[-1])):
            start, damaged = load_start(hpc, settings, mine)
            assert (start.step, start.samples, start.resumed, damaged) == (2, 38, True, [])
            second = trainer(other, settings, start=start)
            list(second.run_steps())
            assert second.step == STEPS
            whole = gathered(hpc, second), gathered(hpc, unbroken)
            if hpc.rank == 0:
                for name, each in whole[0].items():
                    if other == mesh:
                        assert each.numpy().tobytes() == whole[1][name].numpy().tobytes(), (str(mesh), name)
                    assert torch.allclose(each, whole[1][name], rtol=0, atol=1e-12), (str(mesh), str(other), name)
        for directory in state.glob("step-*") if mine else []:
            shutil.rmtree(directory)


def test_all_ranks_fail_if_the_first_cannot_use_the_checkpoints(hpc, trainer, tmp_path):
    state = tmp_path / "state"
    mine = CheckpointDirectory(state) if hpc.rank == 0 else None
    first = trainer(Mesh(dp=hpc.size), UNEVEN)
    first.save_checkpoint(mine)
    with pytest.raises(UsageError, match="seed 3, but this run has seed 1"):
        load_start(hpc, replace(UNEVEN, seed=1), mine)
    if mine:
        shutil.rmtree(state)
        state.write_text("")  # a file where the directory was
    with pytest.raises(UsageError, match=r"--checkpoint .*: cannot write there \(.*\); name a writable directory"):
        first.save_checkpoint(mine)


def gathered(hpc, trainer):
    model = trainer.model
    by_rank = full_parameters.gather_shards(hpc, trainer.mesh, model, trainer.layers.parameters)
    return full_parameters.assemble_parameters(trainer.mesh, model, by_rank) if by_rank else None


def test_gathered_shards_are_those_of_every_rank(hpc):
    for mesh in meshes(hpc):
        parts = make_model(UNEVEN.model).list_shards(mesh, hpc.rank)
        mine = [torch.full(piece.shape, float(hpc.rank)) for piece in parts]
        found = full_parameters.gather_shards(hpc, mesh, make_model(UNEVEN.model), mine)
        assert (found is not None) == (hpc.rank == 0)
        for rank, theirs in enumerate(found or []):
            shapes = [piece.shape for piece in make_model(UNEVEN.model).list_shards(mesh, rank)]
            assert [tuple(each.shape) for each in theirs] == shapes
            assert all(bool((each == rank).all()) for each in theirs)


def test_a_loss_that_is_not_finite_ends_the_run(hpc, trainer):
    mesh = meshes(hpc)[0]
    ours = trainer(mesh, replace(UNEVEN, optimizer=OptimizerConfig(lr=1e200), steps=50))
    with pytest.raises(
        WrongResultError, match=r"step \d+: the \w+ of rank \d is not finite .*; give a smaller --lr than 1e\+200"
    ):
        list(ours.run_steps())
