"""Pipeline schedules on the command line: proofs, simulations, charts, files, and errors of wrong schedules."""

from __future__ import annotations

import json

import jsonschema
import pytest
from PIL import Image

from hpccoll.cli.main import main
from hpccoll.processes import launched_rank
from hpccoll.records import make_json_schema


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in launched_rank.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def written(tmp_path):
    """Write a schedule to a CSV file with some cells replaced, and return its name."""

    def write(*replacements, name="1f1b", csv_format="compute_comms"):
        file = tmp_path / "mine.csv"
        counts = ["--stages", "4", "--microbatches", "4", "--format", csv_format]
        assert main(["export", name, "-o", str(file), *counts]) == 0
        text = file.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        return str(file)

    return write


def test_schedules_are_proven_and_listed(capsys):
    assert main(["verify", "schedules", "--stages", "2:4", "--microbatches", "1:4"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows["1f1b"][1:7] == ["12/12", "2", "to", "4", "to", "4"]
    assert rows["dualpipev"][1] == "4/4"
    assert {"gpipe", "interleaved_1f1b", "looped_bfs", "zb_h1", "zbv"} <= set(rows)


@pytest.mark.parametrize("command", ["verify", "simulate"])
def test_records_follow_the_schema(tmp_path, command):
    file = tmp_path / "out.jsonl"
    counts = ["--stages", "4,8", "--microbatches", "8", "--json", str(file)]
    assert main([command, "zbv", "zb_h1", *counts]) == 0
    described = jsonschema.Draft202012Validator(make_json_schema())
    run, *records = [json.loads(line) for line in file.read_text().splitlines()]
    for each in (run, *records):
        described.validate(each)
    assert [(each["schedule"], each["stages"], each["command"]) for each in records] == [
        *(("zbv", 4, command), ("zbv", 8, command), ("zb_h1", 4, command), ("zb_h1", 8, command)),
    ]
    assert [each["idle_time"] for each in records] == [each["published_idle_time"] for each in records] == [1, 3, 3, 7]
    assert records[1]["activations"] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_a_simulation_takes_the_times_of_passes(capsys):
    assert main(["simulate", "1f1b", "--stages", "4", "--pass-times", "2,1.5,1.5", "--transfer", "0"]) == 0
    said = capsys.readouterr().out
    assert "F=2, I=1.5, W=1.5, transfer=0" in said
    assert said.splitlines()[2].split() == ["1f1b", "4", "4", "8", "55", "15", "15", "27.3%", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("csv_format", ["compute_only", "compute_comms"])
@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipev"])
def test_a_file_is_proven_in_both_formats(written, capsys, name, csv_format):
    file = written(name=name, csv_format=csv_format)
    for more in ([], ["--format", csv_format]):
        assert main(["verify", file, *more]) == 0
    assert main(["simulate", file]) == 0
    assert "mine.csv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (("1RECV_F1,", ""), "rank 1, action 4 (1F1): it needs the receive of the input 1RECV_F1; put it before"),
        (("2B3,", ""), "rank 2, action 23 (2SEND_B3): it needs the backward pass 2B3 or 2I3; put it before"),
        (("1B2,", "1B2,1B2,"), "rank 1, action 21 (1B2): it repeats action 20; remove one of them"),
        (("0F3,", "2F3,"), "rank 0, action 7 (2F3): stage 2 is on rank 2; move the action there"),
    ],
)
def test_a_wrong_file_is_refused_with_rank_action_and_reason(written, capsys, replacement, message):
    file = written(replacement)
    for command in (["verify", file], ["simulate", file], ["draw", file, "-o", f"{file}.svg"]):
        capsys.readouterr()
        assert main(command) == 1
        assert capsys.readouterr().err == f"Error: {file}: {message}\n"


def test_an_unreadable_file_is_a_usage_error(written, tmp_path, capsys):
    file = written(("2F0", "2G0"))
    capsys.readouterr()
    assert main(["verify", file]) == 2
    assert f"{file}, line 3, column 2: '2G0' is no action; write stage, kind" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "absent.csv")]) == 2
    assert "absent.csv cannot be read" in capsys.readouterr().err
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe0F0")
    assert main(["verify", str(tmp_path / "binary.csv")]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "1f1b", "all_reduce/ring"], "all_reduce/ring is not; use two commands"),
        (["verify", "1f1b", "--ranks", "4"], "--ranks: only for collectives; leave it out"),
        (["verify", "all_reduce/ring", "--stages", "4"], "--stages: only for pipeline schedules; leave it out"),
        (["simulate", "1f1b", "--machine", "summit", "--size", "8"], "--size and --machine: only for collectives"),
        (["simulate", "1f1b", "--pass-times", "1,2"], "--pass-times 1,2: write the times of F, I and W of a stage"),
        (["simulate", "dualpipev", "--stages", "8", "--microbatches", "4"], "needs at least as many micro-batches"),
        (["draw", "1f1b", "--stages", "2,4", "-o", "x.svg"], "the options give 2 schedules; give one of --stages"),
        (["draw", "1f1b", "-o", "x.gif"], "-o x.gif: a schedule is drawn as .txt, .svg, .png or .json"),
        (["draw", "1f1b", "--stages", "8", "--microbatches", "99", "-o", "x.svg"], "legible up to 227 units"),
        (["export", "1f1b", "-o", "x.json"], "-o x.json: a pipeline schedule is written as .csv"),
        (["draw", "1f1b", "--pass-times", "1,1,1.5", "-o", "x.txt"], "needs times that are whole numbers"),
        (["verify", "zbvv"], "unknown"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_paragraph(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_charts_have_a_line_per_rank(tmp_path, capsys):
    counts = ["--stages", "4", "--microbatches", "4"]
    for suffix in (".txt", ".svg", ".png", ".json"):
        assert main(["draw", "dualpipev", "-o", str(tmp_path / f"chart{suffix}"), *counts]) == 0
    text = (tmp_path / "chart.txt").read_text()
    assert text.startswith("dualpipev: 4 stages on 2 ranks, micro-batches: 4; time 26, bubble 7.7%, at most 5 live")
    assert text.splitlines()[3].startswith("rank 0 0F0 0F1 0F2 3F0")
    assert "0F3+3B1 -" in text
    assert (tmp_path / "chart.svg").read_text().count("<rect") > 40
    with Image.open(tmp_path / "chart.png") as picture:
        assert picture.width > 600
    events = json.loads((tmp_path / "chart.json").read_text())["traceEvents"]
    assert sum(each["ph"] == "X" for each in events) == 31
