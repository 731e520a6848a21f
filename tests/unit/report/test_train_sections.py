"""The sections of the report on training: charts over steps, and the account of meshes."""

from __future__ import annotations

from pathlib import Path

from hpccoll.cli import main as cli
from hpccoll.report.load import load_results
from hpccoll.report.train_sections import build_train_sections

ACCOUNT = Path(__file__).parents[3] / "bench" / "results" / "strategies" / "account-2.jsonl"


def test_a_training_run_has_charts_over_steps(tmp_path):
    file = tmp_path / "train.jsonl"
    lines = ACCOUNT.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: next(at for at, line in enumerate(lines) if "train_account" in line)]))
    (steps,) = build_train_sections(load_results([file]))
    assert [panel.title for panel in steps.panels][:2] == ["Loss", "Time of a step"]
    assert [name for name, _ in steps.legend] == ["dp=2"]
    assert "dp=2" in steps.panels[0].svg


def test_an_account_has_its_picture_and_no_charts_of_steps_which_mix_its_strategies():
    results = load_results([ACCOUNT])
    (account,) = build_train_sections(results)
    assert account.panels[0].svg.startswith("<svg")
    assert len(account.tables[0].rows) == sum(len(each.entries) for _, each in results.accounts)


def test_the_page_names_the_steps_it_shows(tmp_path):
    page = tmp_path / "report.html"
    assert cli.main(["report", str(ACCOUNT), "-o", str(page)]) == 0
    text = page.read_text()
    assert f"{len(load_results([ACCOUNT]).train_steps)} training steps" in text
    assert "Account of training" in text
