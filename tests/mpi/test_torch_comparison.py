"""`hpccoll train --compare`: torch's parallelism trains the same model to the same losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hpccoll
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.records import TrainStepRecord
from hpccoll.train.options import UNTIMED_STEPS, CourseConfig, GptConfig, MlpConfig, TrainOptions
from tests.record_schema import require_valid

torch = pytest.importorskip("torch")

from hpccoll.peers.process_group import open_process_group  # noqa: E402 - torch may not be here
from hpccoll.train.torch_comparison import require_comparable, run_comparison  # noqa: E402
from hpccoll.train.trainer import Trainer  # noqa: E402

COURSE = TrainOptions(CourseConfig(width=12, layers=5), UNTIMED_STEPS + 3, batch=48, microbatches=4, dtype="float64")
DIGITS = replace(COURSE, model=MlpConfig(width=12, layers=4), schedule="gpipe")
GPT = replace(COURSE, model=GptConfig(width=16, layers=1, heads=4, context=6))


@pytest.mark.needs_ranks(2)
def test_both_sides_have_the_same_losses(comm):
    with hpccoll.Communicator(comm) as hpc, open_process_group("gloo"):
        for strategy, options in [*((axis, COURSE) for axis in ("dp", "tp", "pp")), ("pp", DIGITS), ("dp", GPT)]:
            mesh = Mesh.parse(strategy, hpc.size)
            require_comparable(mesh, options)
            trainer = Trainer(hpc, mesh, options)
            records: list[TrainStepRecord] = []
            found = run_comparison(trainer, "gloo", records.append)
            trainer.close()
            require_valid(found.as_dict())
            assert found.loss_difference < 1e-12, (strategy, found)
            assert (found.steps, len(records)) == (3, options.steps)
            assert found.torch.endswith(" over gloo")


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        (Mesh(), COURSE, "needs a mesh of one axis with two ranks or more, not dp=1; give dp, tp or pp"),
        (Mesh(dp=2, tp=2), COURSE, "not dp=2,tp=2"),
        (Mesh(tp=2), GPT, "available for dp only, not for tp=2; choose --model course"),
        (Mesh(dp=5), COURSE, "--batch 48 is no multiple of 20; give --batch 40"),
        (Mesh(pp=2), replace(COURSE, schedule="zb_h1"), "choose 1f1b or gpipe"),
        (Mesh(pp=5), COURSE, "not 4; give --microbatches 5"),
        (Mesh(tp=5), COURSE, "needs a multiple of it as --width, not 12"),
        (Mesh(dp=2), replace(COURSE, steps=UNTIMED_STEPS), "needs --steps 3 or more"),
    ],
)
@pytest.mark.needs_ranks(1, 1)
def test_what_torch_does_not_have_is_refused(mesh, options, message):
    with pytest.raises(UsageError, match=message):
        require_comparable(mesh, options)
