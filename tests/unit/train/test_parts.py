"""The parts of a training run that need neither ranks nor torch: data, checkpoints, records."""

from __future__ import annotations

import dataclasses
from itertools import product

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpccoll.cli.train import train
from hpccoll.errors import UsageError
from hpccoll.parallel.axis_group import OPERATIONS
from hpccoll.parallel.mesh import AXES, Mesh
from hpccoll.records import TrainSummaryRecord, make_json_schema
from hpccoll.train.datasets import load_digits
from hpccoll.train.options import GptConfig, MlpConfig, TrainOptions, split_strategy
from hpccoll.train.record import (
    RankStep,
    combine_rank_steps,
    describe_mesh,
    explain_non_finite,
)
from hpccoll.train.samples import Samples


def test_the_digits_are_complete_and_a_tenth_is_held_out():
    train, held_out = load_digits()
    assert (len(train), len(held_out)) == (1618, 179)
    assert train.inputs.shape == (1618, 64)
    assert (train.inputs.min(), train.inputs.max()) == (0, 1)
    assert np.bincount(np.concatenate([train.targets, held_out.targets])).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]


def test_each_epoch_has_every_sample_once_in_a_different_order():
    train = load_digits()[0]
    rows = np.arange(len(train))
    numbered = Samples(rows, rows)
    passes = [numbered.get_batch(3, first, len(train))[1] for first in (0, len(train))]
    assert [sorted(each) for each in passes] == [list(rows)] * 2
    assert passes[0].tolist() != passes[1].tolist()
    assert numbered.get_batch(4, 0, len(train))[1].tolist() != passes[0].tolist()
    steps = [numbered.get_batch(3, first, 50)[1] for first in range(0, 3200, 50)]  # one of them lies across two passes
    assert np.concatenate(steps).tolist() == np.concatenate(passes)[:3200].tolist()


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(make_json_schema())


OPTIONS = TrainOptions(GptConfig(context=4), 30, batch=16, zero=2, sequence_parallel=True)
STEPS = [
    RankStep(1.0, 9.0, 0.5, 0.1, 0.06, 0.05, 100, stop=False),
    RankStep(0.5, 16.0, 0.4, 0.3, 0.2, 0.1, 200, stop=True),
]
SENT = [{"pp": {"send": 8.0}, "tp": {"all_reduce": 2.0}}, {"pp": {"send": 4.0}, "tp": {"all_gather": 3.0}}]
ROWS = [
    (*step, *(sent.get(axis, {}).get(operation, 0.0) for axis, operation in product(AXES, OPERATIONS)))
    for step, sent in zip(STEPS, SENT, strict=True)
]
SUMMARY = TrainSummaryRecord(
    **describe_mesh(Mesh(dp=2), OPTIONS),
    model="mlp",
    width=64,
    layers=4,
    activation="tanh",
    parameters=9,
    dtype="float32",
    device="cpu",
    seed=0,
    batch=64,
    microbatches=1,
    schedule="1f1b",
    lr=0.5,
    optimizer="sgd",
    steps=30,
    resumed_at=10,
    stop="complete",
    loss=0.5,
    heads=None,
    context=None,
    held_out_loss=0.4,
    accuracy=0.9,
    median_step_s=0.2,
    wrong=0,
    max_error=1e-16,
    checkpoint="state/step-00000030",
)


def test_a_step_record_combines_all_ranks(validator):
    record, stop = combine_rank_steps(7, Mesh(pp=2), OPTIONS, AXES, ROWS)
    found = record.as_dict()
    validator.validate(found)
    assert set(found) - {"schema", "kind"} == set(make_json_schema()["$defs"]["train"]["properties"])
    assert (found["strategy"], found["ranks"], found["pp"], found["step"]) == ("pp=2", 2, 2, 7)
    assert (found["zero"], found["sequence_parallel"]) == (2, True)
    assert (found["loss"], found["grad_norm"]) == (1.5, 5.0)
    assert (found["step_s"], found["comm_s"], found["exposed_comm_s"]) == (0.5, 0.3, 0.2)  # the most of any rank
    assert found["tokens_per_s"] == 128
    assert found["bubble"] == pytest.approx((0.05 + 0.1 + (0.5 - 0.4)) / 2 / 0.5)
    assert found["peak_bytes"] == 200
    assert found["sent_bytes"] == {"tp": {"all_reduce": 2.0, "all_gather": 3.0}, "pp": {"send": 8.0}}
    assert stop


@pytest.mark.parametrize(
    ("rank", "field", "told"),
    [(1, "loss", "step 7: the loss of rank 1 is not finite (loss nan, norm of the gradient 5)"),
     (0, "square_norm", "the gradient of rank 0 is not finite (loss 1.5, norm of the gradient nan); give")],
)  # fmt: skip
def test_a_number_that_is_not_finite_is_reported_with_its_rank(rank, field, told):
    assert explain_non_finite(combine_rank_steps(7, Mesh(pp=2), OPTIONS, AXES, ROWS)[0], ROWS, 0.5) is None
    rows = [list(row) for row in ROWS]
    rows[rank][RankStep._fields.index(field)] = float("nan")
    assert told in str(explain_non_finite(combine_rank_steps(7, Mesh(pp=2), OPTIONS, AXES, rows)[0], rows, 0.5))


def test_there_is_no_bubble_without_a_pipeline(validator):
    found = combine_rank_steps(1, Mesh(dp=2), OPTIONS, AXES, ROWS)[0].as_dict()
    validator.validate(found)
    assert found["bubble"] is None


def test_a_summary_is_valid(validator):
    found = SUMMARY.as_dict()
    validator.validate(found)
    assert set(found) - {"schema", "kind"} == set(make_json_schema()["$defs"]["train_summary"]["properties"])
    unknown = ("resumed_at", "loss", "accuracy", "median_step_s", "wrong", "max_error", "checkpoint")
    nothing = replace(SUMMARY, steps=0, stop="stop_file", **dict.fromkeys(unknown))
    validator.validate(nothing.as_dict())


@pytest.mark.parametrize("kind", ["train", "train_summary"])
def test_the_schema_requires_every_field(kind, validator):
    step, _ = combine_rank_steps(7, Mesh(pp=2), OPTIONS, AXES, ROWS)
    found = (step if kind == "train" else SUMMARY).as_dict()
    # Records of earlier versions lack these fields.
    later = {"cp", "ep", "sent_bytes", "allocated_bytes", "zero", "sequence_parallel"}
    for key in set(found) - {"schema", "kind", *later}:
        assert not validator.is_valid({name: value for name, value in found.items() if name != key}), key


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--activation", "swiglu"], "--activation swiglu is not available for --model mlp; choose tanh or gelu"),
        (["--model", "gpt", "--activation", "tanh"], "not available for --model gpt; choose gelu or swiglu"),
        (["--model", "gpt", "--split", "all_gather"], "--split is no option of --model gpt"),
        (["--experts", "4"], "--experts is no option of --model mlp"),
        (["--model", "gpt", "--top-k", "2"], "--top-k 2 needs a mixture of experts; add --experts 8, or leave --top-k"),
        (["--model", "gpt", "--capacity-factor", "1.5"], "--capacity-factor 1.5 needs a mixture of experts; add"),
    ],
)
def test_options_of_another_model_are_refused(words, message):
    result = CliRunner().invoke(train, ["dp", *words])
    assert message in str(result.exception)


def test_schedules_that_divide_backward_passes_are_refused_with_zero_2_and_3():
    options = TrainOptions(MlpConfig(), 1, zero=2, schedule="zb_h1")
    with pytest.raises(UsageError, match=r"--schedule zb_h1 .*; give --schedule 1f1b, or --zero 1"):
        options.require_mesh_fits(Mesh(dp=2, pp=2))
    dataclasses.replace(options, zero=1).require_mesh_fits(Mesh(dp=2, pp=2))
    dataclasses.replace(options, schedule="1f1b").require_mesh_fits(Mesh(dp=2, pp=2))


@pytest.mark.parametrize(
    ("strategy", "axes", "changes"),
    [
        ("tp=2, sp", "tp=2", {"sequence_parallel": True}),
        ("zero2", "dp", {"zero": 2}),
        ("ep=2,zero3", "ep=2", {"zero": 3}),
    ],
)
def test_words_of_a_strategy_that_are_no_axes_set_options(strategy, axes, changes):
    options = TrainOptions(GptConfig(), 1)
    assert split_strategy(strategy, options) == (axes, dataclasses.replace(options, **changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zero1", "--zero", "2"], "zero1 sets --zero 1, not --zero 2"),
        (["dp", "--zero", "2", "--bucket-bytes", "1M"], "--bucket-bytes is not available with --zero 2"),
    ],
)
def test_options_that_contradict_zero_are_refused(arguments, message):
    result = CliRunner().invoke(train, arguments)
    assert message in str(result.exception)
