"""The pages and charts of bench/ show what the recorded results say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from hpccoll.records.json_schema import DEFINITIONS

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def summary(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("summary", BENCH / "summary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "summary", module)
    spec.loader.exec_module(module)
    return module


def test_pages_are_those_of_the_recorded_results(summary):
    pages = summary.make_pages()
    stale = [path.name for path, text in pages.items() if not path.is_file() or path.read_text() != text]
    assert not stale, "run: python bench/summary.py --write"
    guides = {BENCH.parent / "docs" / name for name in ("torch.md", "training.md", "strategies.md")}
    claims = {BENCH / "README.md", BENCH.parent / "README.md", *guides}
    assert set((BENCH / "tables").iterdir()) | claims == set(pages)


def test_every_claim_has_one_chart_and_one_table():
    text = (BENCH / "README.md").read_text()
    claims = text.split("<!-- claims")[1].split("<!-- end of claims")[0]
    sections = [part for part in claims.split("\n### ")[1:] if not part.startswith("Missed")]
    charts = re.findall(r"\]\((charts/[\w-]+\.svg)\)", claims)
    assert len(charts) == len(sections) >= 8
    assert {BENCH / chart for chart in charts} == set((BENCH / "charts").iterdir())
    for section in sections:
        assert section.count("\n|---") == 1
        assert section.count("\n| ") <= 8


def test_every_kind_of_record_of_the_scripts_is_described():
    text = (BENCH / "README.md").read_text()
    described = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    scripts = "".join(path.read_text() for path in BENCH.glob("*.py"))
    files = "".join(path.read_text() for path in (BENCH / "results").rglob("*.jsonl"))
    written = set(re.findall(r'"kind": ?"(\w+)"', scripts + files))
    assert "failure_watch" in written
    assert written - set(DEFINITIONS) <= described
