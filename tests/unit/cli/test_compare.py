"""The command `hpccoll compare`: statuses, records, messages on bad input."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from msgspec.structs import replace

import hpccoll.cli.main as cli
from hpccoll.cli.compare import parse_tolerance
from hpccoll.errors import UsageError
from hpccoll.records.json_schema import DEFINITIONS
from tests.unit.compare.synthetic_runs import make_records, write_run
from tests.unit.compare.test_rounds import make_command


@pytest.fixture
def files(tmp_path):
    """Return the paths of a baseline, an equal run, and one in which all_gather takes 1.3 times as long."""
    slower = {("all_gather", "hpccoll"): 1.3}
    runs = {"before": make_records(1), "same": make_records(2), "slower": make_records(3, slower)}
    return {name: write_run(tmp_path / f"{name}.jsonl", records) for name, records in runs.items()}


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("0", 0.0), (" 2.5 % ", 0.025), ("150%", 1.5)]
)
def test_a_tolerance_is_a_percentage_or_a_fraction(text, value):
    assert parse_tolerance(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5", "-1%", "x", "nan", "", "%", "inf%"])
def test_other_tolerances_are_refused(text):
    with pytest.raises(UsageError, match="such as 5%"):
        parse_tolerance(text)


def test_a_regression_beyond_the_tolerance_is_status_1(files, capsys):
    assert cli.main(["compare", files["before"], files["same"]]) == 0
    assert "verdict: not enough evidence of a difference: B / A may be anything in [" in capsys.readouterr().out
    assert cli.main(["compare", files["before"], files["slower"]]) == 1
    assert "verdict: worse: all_gather" in capsys.readouterr().out
    assert cli.main(["compare", files["before"], files["slower"], "--tolerance", "5%"]) == 1
    assert cli.main(["compare", files["before"], files["slower"], "--tolerance", "0.9"]) == 0
    assert "slower by more than 90 %: none" in capsys.readouterr().out
    assert cli.main(["compare", files["slower"], files["before"]]) == 0
    assert "better: all_gather" in capsys.readouterr().out


def test_records_are_written_and_valid(files, tmp_path, capsys):
    assert cli.main(["compare", files["before"], files["slower"], "--json", "-"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds == ["run", *["compared_row"] * 36, *["compared_operation"] * 4, "compare_summary"]
    for line in lines:
        DEFINITIONS[line["kind"]].from_dict(line, "")
    assert lines[-1]["regressions"] == lines[-1]["worse"]
    assert lines[-1]["a"] == [files["before"]]
    file = tmp_path / "found.jsonl"
    assert cli.main(["compare", files["before"], "--json", str(file)]) in (0, 1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"run", "guideline"}
    for line in lines:
        DEFINITIONS[line["kind"]].from_dict(line, "")


def test_several_runs_per_side_are_joined(files, tmp_path, capsys):
    assert (
        cli.main(["compare", files["before"], files["same"], "--also-a", files["before"], "--also-b", files["same"]])
        == 0
    )
    assert "A 2 runs, B 2 runs; 36 rows" in capsys.readouterr().out
    assert cli.main(["compare", files["before"], str(tmp_path), "--paired"]) == 0
    assert "A 1 run, B 1 run in turns" in capsys.readouterr().out


def test_a_disturbed_run_is_measured_again_or_left_out(files, tmp_path, capsys):
    busy = [
        replace(each, samples_us=(each.samples_us[0], *(9e3,) * 10, *each.samples_us[11:])) for each in make_records(9)
    ]
    words = ["compare", files["before"], write_run(tmp_path / "busy.jsonl", busy)]
    assert cli.main(words) == 0
    assert "scatter in 1 of 1 run of B; measure again on idle cores" in capsys.readouterr().out
    assert cli.main([*words, "--also-b", files["same"]]) == 0
    assert "scatter in 1 of 2 runs of B; disturbed runs are left out where others remain" in capsys.readouterr().out


def test_wrong_results_are_status_1(files, tmp_path, capsys):
    lines = [json.loads(line) for line in (tmp_path / "same.jsonl").read_text().splitlines()]
    lines[3]["wrong"] = 2
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli.main(["compare", files["before"], str(wrong)]) == 1
    assert "wrong:   not compared: all_reduce 1 KiB hpccoll/tree" in capsys.readouterr().out


def test_other_machines_and_rows_on_one_side_are_said(files, tmp_path, capsys):
    other = write_run(tmp_path / "other.jsonl", make_records(2)[4:], hosts=["n1", "n2"])
    assert cli.main(["compare", files["before"], other]) == 0
    out = capsys.readouterr().out
    assert "differ:  hosts: A vm, B n1, n2" in out
    assert "only A:  4 rows: all_reduce 1 KiB mpi, all_reduce 1 KiB hpccoll/ring" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name two result files to compare"),
        (["missing.jsonl", "before"], "A missing.jsonl: cannot read it"),
        (["before", "four"], "A and B have no row in common; A and B differ in ranks: A 2, B 4"),
        (["before", "same", "--tolerance", "5"], "--tolerance 5: write a percentage"),
        (["before", "same", "--guidelines"], "--guidelines checks one set of results"),
        (["before", "--also-b", "same"], "name B, too"),
        (["--run", "x"], "--run and --against belong together"),
        (["before", "--run", "x", "--against", "y"], "leave out files"),
        (["one"], "no guideline can be checked"),
        (["before", "same", "--control", "local"], "'local' is not one of"),
        (["before", "same", "--rounds", "1"], "1 is not in the range"),
    ],
)
def test_bad_input_is_usage_with_a_remedy(files, tmp_path, capsys, arguments, message):
    files["four"] = write_run(tmp_path / "four.jsonl", make_records(2, ranks=4), ranks=4)
    one = make_records(2, contenders=(("mpi", None),), operations=("barrier",), sizes=(0,))
    files["one"] = write_run(tmp_path / "one.jsonl", one)
    assert cli.main(["compare", *(files.get(word, word) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_commands_in_turns_find_a_slower_operation(tmp_path, capsys):
    against, run = make_command(tmp_path / "a"), make_command(tmp_path / "b", 1.3, seed=50)
    words = ["compare", "--against", against, "--run", run, "--rounds", "4", "--output", str(tmp_path / "out")]
    assert cli.main(words) == 1
    out = capsys.readouterr().out
    assert "worse: scatter" in out
    assert "4 of 4" in out
    assert f"files: {tmp_path}/out" in out
    assert cli.main(["compare", f"{tmp_path}/out/a", f"{tmp_path}/out/b", "--paired"]) == 1
    assert cli.main(words) == 2
    assert "contains the results of earlier rounds" in capsys.readouterr().err


def test_a_command_that_fails_ends_with_its_status_after_the_verdict_so_far(tmp_path, capsys):
    make_command(tmp_path / "a")
    code = "import sys, pathlib; sys.exit(4) if pathlib.Path(sys.argv[1], 'used-1').exists() else exec(sys.argv[2])"
    from tests.unit.compare.test_rounds import COPY

    command = shlex.join([sys.executable, "-c", code, str(tmp_path / "a"), COPY])
    words = ["compare", "--against", command, "--run", command, "--output", str(tmp_path / "out")]
    assert cli.main(words) == 4
    captured = capsys.readouterr()
    assert "1 of 8 rounds are finished" in captured.err
    assert "failed with exit status 4" in captured.err
    assert "A 1 run, B 1 run in turns" in captured.out
