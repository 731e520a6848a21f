"""The sections of the report on barriers: pictures of ranks over time, costs, the late rank, costs over ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpccoll.cli import main as cli
from hpccoll.doctor.finding import Severity
from hpccoll.report.arrival_chart import render_arrival_chart
from hpccoll.report.barrier_sections import build_barrier_sections
from hpccoll.report.findings.relayed import relay_stragglers
from hpccoll.report.load import load_results

DATA = Path(__file__).parents[2] / "data"
BARRIERS = DATA / "barrier-4.jsonl"


@pytest.fixture(scope="module")
def lines():
    """Return the records of the example file."""
    return [json.loads(line) for line in BARRIERS.read_text().splitlines()]


def write_lines(path: Path, lines) -> Path:
    """Write records to a file, and return its path."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_section_has_a_picture_per_row_a_table_of_costs_and_the_late_rank(lines):
    results = load_results([BARRIERS])
    (section,) = build_barrier_sections(results)
    rows = [line for line in lines if line["kind"] == "barrier"]
    summary = lines[-1]
    assert len(section.panels) + len(section.folded_panels) == len(rows) == len(results.barriers)
    assert {panel.title.split(", ")[0] for panel in section.panels} == {summary["fastest"]}
    assert summary["reason"][1:] in section.intro
    costs, lateness = section.tables
    assert {row[0] for row in costs.rows} == {f"{each['engine']}/{each['algorithm']}" for each in summary["barriers"]}
    assert lateness.rows[0][0] == str(summary["straggler"])
    assert len(lateness.rows) == 4


def test_a_picture_has_a_bar_per_rank_from_its_entry_to_its_exit(lines):
    row = next(row for _, row in load_results([BARRIERS]).barriers if row.pattern == "ascending")
    svg = render_arrival_chart(row, "x")
    bars = re.findall(r'<rect [^>]*x="([\d.]+)"[^>]*width="([\d.]+)"[^>]*><title>rank (\d)', svg)
    assert [int(rank) for _, _, rank in bars] == [0, 1, 2, 3]
    begins = [float(x) for x, _, _ in bars]
    assert begins == sorted(begins)
    assert float(bars[0][1]) > float(bars[3][1]), "the first rank waits longest"


def test_the_late_rank_and_unsafe_barriers_are_findings(lines, tmp_path):
    found = list(relay_stragglers(load_results([BARRIERS])))
    assert [(each.severity, each.area) for each in found] == [(Severity.WARNING, "barrier")]
    assert found[0].found.startswith(f"rank {lines[-1]['straggler']} on ")
    changed = [line | ({"unsafe": 2} if line["kind"] == "barrier" else {}) for line in lines]
    changed[-1] = changed[-1] | {"straggler": None}
    severities = [
        each.severity for each in relay_stragglers(load_results([write_lines(tmp_path / "a.jsonl", changed)]))
    ]
    assert severities == [Severity.OK, *[Severity.PROBLEM] * (len(lines) - 2)]


def test_runs_on_different_numbers_of_ranks_have_a_section_of_cost_and_skew_over_ranks(lines, tmp_path):
    fewer = [line | ({"ranks": 2} if line["kind"] != "run" else {}) for line in lines]
    results = load_results([BARRIERS, write_lines(tmp_path / "two.jsonl", fewer)])
    *_, last = build_barrier_sections(results)
    assert last.title == "Barriers over the number of ranks"
    assert [panel.title for panel in last.panels] == ["Time from the last entry to the last exit", "Exit skew"]
    assert len(last.legend) == len(lines[-1]["barriers"])


def test_a_run_that_was_cut_short_is_shown_without_a_late_rank(lines, tmp_path):
    results = load_results([write_lines(tmp_path / "short.jsonl", lines[:-1])])
    (section,) = build_barrier_sections(results)
    assert section.intro.startswith("The run was cut short")
    assert len(section.tables) == 1


def test_the_command_writes_the_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert cli.main(["report", str(BARRIERS), "-o", str(page)]) == 0
    assert "is late to barriers" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.count('<svg id="ba1-') == len(BARRIERS.read_text().splitlines()) - 2
    assert "rows of barriers" in text
