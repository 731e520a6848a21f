"""`hpccoll train --dry-run` without mpirun: output, records, and refused options."""

from __future__ import annotations

import json

import pytest

from hpccoll.cli import main as cli
from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.sizing.parameters import count_parameters, count_rank_parameters
from hpccoll.train.estimated_setup import make_training_setup
from hpccoll.train.options import CourseConfig, GptConfig, MlpConfig, TrainOptions
from tests.record_schema import require_valid

TOO_LARGE = ["--layers", "400", "--width", "4096", "--heads", "32", "--context", "2048"]


def test_a_dry_run_prints_the_ranks_of_each_stage_and_their_memory(tmp_path, capsys):
    file = tmp_path / "dry.jsonl"
    words = ["train", "dp=2,pp=2", "--model", "gpt", "--layers", "4", "--dry-run"]
    assert cli.main([*words, "--json", str(file)]) == 0
    output = capsys.readouterr().out
    assert "on 4 ranks" in output
    rows = [line.split() for line in output.partition("\nRanks\n")[2].splitlines()[1:]]
    assert [row[:2] for row in rows] == [["0-1", "0"], ["2-3", "1"]]
    _, record = [json.loads(line) for line in file.read_text().splitlines()]
    require_valid(record)
    assert float(rows[0][4]) == pytest.approx(record["bytes"]["total"] / 1e6, abs=0.05)
    assert float(rows[0][5]) + float(rows[0][6]) == pytest.approx(record["step_s"], rel=0.01)


def test_a_dry_run_of_a_perceptron_prints_its_parameters_and_bytes(tmp_path, capsys):
    file = tmp_path / "dry.jsonl"
    assert cli.main(["train", "dp=2", "--dry-run", "--json", str(file)]) == 0
    assert "mlp (13,130 parameters) on 2 ranks" in capsys.readouterr().out
    _, record = [json.loads(line) for line in file.read_text().splitlines()]
    require_valid(record)
    assert record["communication_bytes"] == {"all_reduce": 4 * 13130}


def test_a_run_that_needs_too_much_memory_ends_with_status_3(capsys):
    assert cli.main(["train", "dp=2,tp=2", "--model", "gpt", "--dry-run", *TOO_LARGE]) == 3
    captured = capsys.readouterr()
    assert "fits    no" in captured.out
    assert "a rank of DGX H100 has 72 GB" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dp=2", "--dry-run", "--batch", "63"], "does not divide --batch 63"),
        (["dp=2", "--model", "gpt", "--machine", "h200"], "add --dry-run"),
        (["dp=2", "--model", "gpt", "--plot", "a.svg"], "add --account"),
        (["dp=2", "tp=2", "--model", "gpt"], "one STRATEGY at a time, not dp=2 tp=2"),
        (["dp=2", "--model", "gpt", "--account", "--compare"], "takes no --compare"),
        (["dp=2", "--model", "gpt", "--account", "--steps", "2"], "needs --steps 3 or more"),
        (["dp=2", "--model", "gpt", "--account", "--device", "cuda"], "leave --device cuda out"),
        (["zero1,zero2", "--model", "gpt", "--account"], "zero2 sets --zero 2, not --zero 1"),
        (["dp=2", "--model", "gpt", "--dry-run", "--machine", "laptop"], "no peak_TFLOPS and no memory_GB"),
        (["dp=3", "--model", "gpt", "--dry-run"], "does not divide --batch 64"),
        (["tp=3", "--model", "gpt", "--dry-run"], "cannot share --heads 4 equally"),
        (["dq=3", "--model", "gpt", "--dry-run"], "unknown strategy 'dq'"),
        (["dp=2", "--model", "gpt", "--dry-run", "--schedule", "round"], "unknown pipeline schedule 'round'"),
    ],
)
def test_bad_input_is_refused(words, message, capsys):
    assert cli.main(["train", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_schedule_file_has_no_estimate():
    with pytest.raises(UsageError, match=r"--schedule mine\.csv has no estimate"):
        make_training_setup(TrainOptions(GptConfig(layers=4), 1, schedule="mine.csv"), Mesh(pp=2))


SWIGLU = GptConfig(activation="swiglu", width=96, layers=2, context=32)


@pytest.mark.parametrize("config", [GptConfig(), SWIGLU, MlpConfig(width=30, layers=5), CourseConfig(layers=3)])
def test_the_shape_of_a_model_has_its_parameters(config):
    assert count_parameters(config.make_shape()).total == config.parameter_count
    setup = make_training_setup(TrainOptions(config, 1), Mesh())
    assert count_rank_parameters(setup, 0).total == config.parameter_count
