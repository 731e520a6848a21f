"""`hpccoll train --compare`: torch's parallelism trains the same model to the same gradients and losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hpccoll
from hpccoll.errors import UsageError, WrongResultError
from hpccoll.parallel.mesh import Mesh
from hpccoll.records import TrainStepRecord
from hpccoll.train.options import (
    OPTIMIZERS,
    UNTIMED_STEPS,
    CourseConfig,
    ExpertConfig,
    GptConfig,
    MlpConfig,
    TrainOptions,
)
from tests.record_schema import require_valid

torch = pytest.importorskip("torch")

from hpccoll.peers.process_group import open_process_group  # noqa: E402 - torch may not be here
from hpccoll.train.torch_comparison import TorchSide, require_comparable, run_comparison  # noqa: E402
from hpccoll.train.trainer import Trainer  # noqa: E402

COURSE = TrainOptions(CourseConfig(width=12, layers=5), UNTIMED_STEPS + 1, batch=48, microbatches=4, dtype="float64")
DIGITS = replace(COURSE, model=MlpConfig(width=12, layers=4), schedule="gpipe")
GATHERED = replace(COURSE, model=MlpConfig(width=12, layers=3, split="all_gather"), dtype="float32")
SMALL = GptConfig(width=16, layers=2, heads=4, context=6)
GPT = replace(COURSE, model=SMALL, batch=8, microbatches=2)
ADAMW = replace(GPT, model=replace(SMALL, layers=1, activation="swiglu"), optimizer=OPTIMIZERS["adamw"])
DEEP = replace(GPT, model=replace(SMALL, layers=4), microbatches=4)
CASES = {  # by the number of ranks
    2: [
        *((axis, COURSE) for axis in ("dp", "tp", "pp")),
        *(("pp", DIGITS), ("tp", GATHERED)),
        *(("dp", GPT), ("tp", ADAMW), ("pp", replace(GPT, schedule="gpipe"))),
    ],
    3: [("pp", DEEP)],
    4: [("pp", DEEP), ("dp=2,tp=2", ADAMW), ("dp=2,pp=2", GPT), ("tp=2,pp=2", GPT)],
}


@pytest.mark.needs_ranks(2, 4)
def test_both_sides_have_the_same_gradients_and_losses(comm):
    with hpccoll.Communicator(comm) as hpc, open_process_group("gloo"):
        for strategy, options in CASES[hpc.size]:
            mesh = Mesh.parse(strategy, hpc.size)
            require_comparable(mesh, options)
            trainer = Trainer(hpc, mesh, options)
            records: list[TrainStepRecord] = []
            found = run_comparison(trainer, "gloo", records.append)
            trainer.close()
            require_valid(found.as_dict())
            tolerance = 1e-12 if options.dtype == "float64" else 1e-5
            assert found.loss_difference < tolerance, (strategy, found)
            assert found.gradient_difference is not None
            assert found.gradient_difference < tolerance, (strategy, found)
            assert (found.steps, len(records)) == (1, options.steps)
            assert found.torch.endswith(" over gloo")


@pytest.mark.needs_ranks(2, 2)
def test_a_torch_side_with_another_gradient_is_found(comm):
    with hpccoll.Communicator(comm) as hpc, open_process_group("gloo"):
        trainer = Trainer(hpc, Mesh.parse("pp", hpc.size), GPT)
        side = TorchSide(trainer)
        next(trainer.run_steps())
        side.run_step()
        assert side.check_gradients() < 1e-12
        if hpc.rank == 1:
            side.training.parameters["embedding.weight"].grad *= 1.001
        named = "gradient of embedding.weight on rank 1 differs" if hpc.rank == 0 else "gradient differs"
        with pytest.raises(WrongResultError, match=named):
            side.check_gradients()
        trainer.close()


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        (Mesh(), COURSE, "needs a mesh of dp, tp and pp with two ranks or more, not dp=1; give one such as dp=2,tp=2"),
        (Mesh(dp=2, cp=2), GPT, "not dp=2,cp=2"),
        (Mesh(tp=2), replace(GPT, model=replace(SMALL, experts=ExpertConfig(4))), "not available for --experts 4"),
        (Mesh(tp=2), replace(GPT, sequence_parallel=True), "not available with --sequence-parallel; leave"),
        (Mesh(tp=2), replace(GPT, recompute=True), "not available with --recompute; leave"),
        (Mesh(dp=5), COURSE, "--batch 48 is no multiple of 20; give --batch 40"),
        (Mesh(pp=2), replace(COURSE, schedule="zb_h1"), "choose 1f1b or gpipe"),
        (Mesh(pp=5), COURSE, "not 4; give --microbatches 5"),
        (Mesh(tp=5), COURSE, "12 features of layers.0.weight cannot be split equally; give tp=4 or 6"),
        (Mesh(tp=3), replace(GPT, model=replace(SMALL, width=24, heads=3)), "256 features of embedding.weight"),
        (Mesh(dp=2), replace(COURSE, steps=UNTIMED_STEPS), "needs --steps 3 or more"),
    ],
)
@pytest.mark.needs_ranks(1, 1)
def test_what_torch_does_not_have_is_refused(mesh, options, message):
    with pytest.raises(UsageError, match=message):
        require_comparable(mesh, options)
