"""`hpccoll estimate`: output, records, refused options, and the examples of its page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hpccoll.cli import main as cli
from tests.record_schema import require_valid

PAGE = (Path(__file__).parents[3] / "docs" / "estimate.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ hpccoll (.*?)\n(.*?)```", PAGE, re.DOTALL)
EXAMPLE = ["estimate", "llama-3-8b", "--mesh", "dp=8,tp=8", "--zero", "1", "--batch", "512"]


def read_records(file: Path) -> list[dict[str, object]]:
    run, *records = [json.loads(line) for line in file.read_text().splitlines()]
    assert run["kind"] == "run"
    for each in records:
        require_valid(each)
    return records


@pytest.mark.parametrize(("words", "output"), EXAMPLES, ids=[words for words, _ in EXAMPLES])
def test_the_examples_of_the_page_print_what_is_shown(words, output, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(shlex.split(words)) == 0
    assert capsys.readouterr().out.strip() == output.strip()


def test_the_page_has_examples():
    assert len(EXAMPLES) >= 2


def test_the_answers_come_first_and_fit_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(EXAMPLE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    headings = [line.split()[0] for line in lines if re.match(r"(fits|step|limit) ", line)]
    assert headings == ["fits", "step", "limit"]
    assert lines.index(next(line for line in lines if line.startswith("limit"))) < 8


def test_the_record_has_the_fields_that_scripts_rely_on(tmp_path):
    file = tmp_path / "estimate.jsonl"
    assert cli.main([*EXAMPLE, "--json", str(file)]) == 0
    (record,) = read_records(file)
    assert record["parameters"] == 8_030_261_248
    assert record["strategy"] == "dp=8,tp=8"
    assert record["step_s"] == pytest.approx(
        record["compute_s"] + record["idle_s"] + sum(record["exposed_s"].values())  # type: ignore[attr-defined,operator]
    )
    assert set(record["overlap"]) == {"dp", "tp"}  # type: ignore[call-overload]
    sent = sum(each["within"] + each["between"] for each in record["communication"])  # type: ignore[attr-defined]
    assert sum(record["communication_bytes"].values()) == pytest.approx(sent)  # type: ignore[attr-defined]


def test_the_search_records_the_fastest_mesh_first(tmp_path, capsys):
    file = tmp_path / "search.jsonl"
    assert cli.main(["estimate", "llama-2-7b", "--search", "--ranks", "8", "--json", str(file)]) == 0
    records = read_records(file)
    fitting = [each["step_s"] for each in records if each["fits"]]
    assert fitting == sorted(fitting)  # type: ignore[type-var]
    assert f"best    {records[0]['strategy']}, " in capsys.readouterr().out


def test_a_model_that_fits_no_mesh_is_told_with_the_reason(capsys):
    assert cli.main(["estimate", "llama-3-405b", "--search", "--ranks", "6", "--batch", "6"]) == 0
    output = capsys.readouterr().out
    assert "fits    no: no mesh within 72.0 GB per rank" in output
    assert re.search(r"  \S+: \d+\.\d GB, of which \d+\.\d GB are \w+", output)
    assert "tp = 6 does not divide --heads 128" in output


def test_a_model_of_ones_own_needs_three_options(capsys):
    assert cli.main(["estimate", "--layers", "12", "--width", "768", "--heads", "12"]) == 0
    assert "custom (124 M parameters)" in capsys.readouterr().out
    assert cli.main(["estimate", "--layers", "12"]) == 2
    assert "--width and --heads are missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt5"], "unknown model 'gpt5'"),
        (["gpt5"], "mixtral-8x7b"),
        ([], "name a preset (gpt2, gpt2-medium"),
        (["gpt2", "--mesh", "dp=8", "--ranks", "16"], "--mesh dp=8 has 8 ranks, not --ranks 16"),
        (["gpt2", "--mesh", "tp=5"], "tp = 5 does not divide --heads 12"),
        (["gpt2", "--mesh", "dp=4", "--batch", "6"], "does not divide --batch 6"),
        (["gpt2", "--machine", "laptop"], "machine laptop has no peak_TFLOPS and no memory_GB"),
        (["gpt2", "--search", "--ranks", "4", "--machine", "workstation"], "has no peak_TFLOPS and no memory_GB"),
        (["gpt2", "--machine", "cray"], "unknown machine 'cray'"),
        (["gpt2", "--schedule", "round"], "unknown pipeline schedule 'round'"),
        (["gpt2", "--sequence", "2048"], "--sequence 2048 exceeds the 1024 position embeddings"),
        (["gpt2", "--search"], "--search needs the number of ranks"),
        (["gpt2", "--search", "--mesh", "dp=8"], "--search chooses --mesh itself"),
        (["mixtral-8x7b", "--mesh", "ep=3"], "ep = 3 does not divide --experts 8"),
    ],
)
def test_bad_input_is_refused(words, message, capsys):
    assert cli.main(["estimate", *words]) == 2
    assert message in capsys.readouterr().err
