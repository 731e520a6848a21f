"""The report in a real browser: its pictures are drawn, its script runs, and it makes no network requests."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpccoll.cli import main as cli
from tests.jobs.browser import chromium, look, run

DATA = Path(__file__).parents[1] / "data"
FILES = [str(DATA / name) for name in ("bench-2.jsonl", "bench-4.jsonl", "preflight-4.jsonl")]

PLOTS = """(answers) => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const style = (element, name) => getComputedStyle(element)[name];
  answers.charts = all("svg.chart").map((chart) => {
    const box = chart.getBoundingClientRect();
    const lines = all(".line .path", chart);
    return {
      id: chart.id, width: box.width, height: box.height, folded: !!chart.closest("details"),
      label: chart.getAttribute("aria-label"), desc: chart.querySelector("desc").textContent.length,
      lengths: lines.map((line) => line.getTotalLength()),
      strokes: lines.map((line) => style(line, "stroke")),
      marks: all(".mark", chart).length,
      ticks: all(".y.shown text", chart).length,
      inside: all(".mark", chart).every((mark) => {
        const m = mark.getBoundingClientRect();
        return m.left >= box.left - 1 && m.right <= box.right + 1 && m.top >= box.top - 1 && m.bottom <= box.bottom + 1;
      }),
    };
  });
  answers.heats = all("svg.heat").map((heat) => {
    const box = heat.getBoundingClientRect(), cells = all("rect.cell", heat);
    return {
      width: box.width, height: box.height, cells: cells.length,
      fills: new Set(cells.map((cell) => style(cell, "fill"))).size,
      side: Math.min(...cells.map((cell) => cell.getBoundingClientRect().width)),
    };
  });
  answers.findings = all(".finding").length;
  answers.wide = document.documentElement.scrollWidth - innerWidth;
  answers.background = style(document.body, "backgroundColor");
  answers.ink = style(document.body, "color");
}"""

ACTING = """(answers) => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const chart = document.querySelector("svg.chart"), line = chart.querySelector('.line[data-name="ring"]');
  const path = line.querySelector(".path"), mark = line.querySelector(".mark");
  const button = document.querySelector(`button.swap[data-for="${chart.id}"]`);
  const state = () => [path.getAttribute("d"), mark.getAttribute("transform"), button.textContent,
    getComputedStyle(all("g.y", chart)[0]).display];
  answers.shown = !button.hidden;
  answers.before = state(); button.click(); answers.swapped = state(); button.click(); answers.back = state();
  const key = all(".legend button", chart.closest("section")).find((each) => each.dataset.name === "ring");
  const visible = () => [key.getAttribute("aria-pressed"), getComputedStyle(line).display];
  answers.on = visible(); key.click(); answers.off = visible(); key.click(); answers.again = visible();
  key.dispatchEvent(new PointerEvent("pointerenter"));
  answers.lit = [line.classList.contains("lit"), all(".line.lit", chart).length];
  key.dispatchEvent(new PointerEvent("pointerleave"));
  answers.unlit = all(".line.lit").length;
  const tip = document.getElementById("tip"), box = mark.getBoundingClientRect();
  const at = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true};
  answers.tipHidden = tip.hidden;
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  answers.tip = [tip.hidden, tip.querySelector("b").textContent, all(".row", tip).length, all(".near", tip).length];
  answers.cross = chart.querySelector(".cross").style.visibility;
  chart.dispatchEvent(new PointerEvent("pointerleave"));
  answers.tipGone = tip.hidden;
  chart.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  answers.first = tip.querySelector("b").textContent;
  chart.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  answers.second = tip.querySelector("b").textContent;
  chart.dispatchEvent(new FocusEvent("blur"));
  const cell = document.querySelector("rect.cell");
  cell.dispatchEvent(new PointerEvent("pointermove", {clientX: 9, clientY: 9}));
  answers.cell = [tip.hidden, tip.textContent];
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chromium()
    target = tmp_path_factory.mktemp("report") / "report.html"
    assert cli.main(["report", *FILES, "-o", str(target), "--machine", "laptop"]) == 0
    return target


def test_every_picture_is_drawn_and_nothing_goes_wrong(page: Path, tmp_path: Path) -> None:
    saw = look(page, tmp_path, PLOTS)
    assert saw["errors"] == []
    assert saw["violations"] == []
    assert saw["requests"] == 0
    assert len(saw["charts"]) == 36
    for chart in saw["charts"]:
        assert chart["label"]
        assert chart["desc"] > 20
        if chart["folded"]:
            continue
        assert chart["width"] > 300, chart["id"]
        assert chart["height"] > 150, chart["id"]
        assert len(chart["lengths"]) >= 4, chart["id"]
        assert min(chart["lengths"]) > 100, chart["id"]
        assert "none" not in chart["strokes"], chart["id"]
        assert len(set(chart["strokes"])) >= 4, chart["id"]
        assert chart["marks"] >= 8, chart["id"]
        assert chart["ticks"] >= 2, chart["id"]
        assert chart["inside"], chart["id"]
    assert sum(not chart["folded"] for chart in saw["charts"]) == 24
    for heat in saw["heats"]:
        assert heat["cells"] == 12
        assert heat["fills"] >= 2
        assert heat["side"] > 20
    assert len(saw["heats"]) == 2
    assert saw["findings"] >= 2
    assert saw["wide"] <= 0


def test_the_script_does_what_its_buttons_say(page: Path, tmp_path: Path) -> None:
    saw = look(page, tmp_path, ACTING)
    assert saw["errors"] == []
    assert saw["shown"]
    assert [saw[name][2:] for name in ("before", "swapped", "back")] == [
        ["log", "inline"],
        ["linear", "none"],
        ["log", "inline"],
    ]
    assert saw["before"] == saw["back"]
    assert all(one != other for one, other in zip(saw["before"], saw["swapped"], strict=True))
    assert [saw[name] for name in ("on", "off", "again")] == [["true", "inline"], ["false", "none"], ["true", "inline"]]
    assert saw["lit"] == [True, 1]
    assert saw["unlit"] == 0
    assert saw["tipHidden"]
    hidden, head, rows, near = saw["tip"]
    assert not hidden
    assert head == "2"  # the first picture is a scaling, its first place two ranks
    assert rows == 5
    assert near == 1
    assert saw["cross"] == "visible"
    assert saw["tipGone"]
    assert (saw["first"], saw["second"]) == ("2", "4")
    assert saw["cell"][0] is False
    assert "node" in saw["cell"][1]


def test_a_narrow_window_and_a_dark_one_show_it_too(page: Path, tmp_path: Path) -> None:
    light = look(page, tmp_path, PLOTS, "--window-size=500,900")
    dark = look(page, tmp_path, PLOTS, "--blink-settings=preferredColorScheme=0")
    for saw in (light, dark):
        assert saw["errors"] == []
        assert saw["wide"] <= 0
        assert all(chart["inside"] for chart in saw["charts"] if not chart["folded"])
    assert (light["background"], light["ink"]) != (dark["background"], dark["ink"])
    assert light["charts"][0]["strokes"] != dark["charts"][0]["strokes"]


def test_without_scripts_the_pictures_are_still_there(page: Path, tmp_path: Path) -> None:
    plain, shot = tmp_path / "plain.html", tmp_path / "shot.png"
    text = page.read_text(encoding="utf-8")
    plain.write_text(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL), encoding="utf-8")
    coloured = []
    for _ in range(3):  # on a busy machine, the browser may take the screenshot before it has drawn the page
        done = run(tmp_path, f"--screenshot={shot}", f"{plain.as_uri()}#sc1")
        assert shot.exists(), done.stderr[-2000:]
        with Image.open(shot) as image:
            pixels = np.asarray(image.convert("RGB"), np.int16)  # (height, width, 3)
        coloured.append(int((np.ptp(pixels, axis=2) > 100).sum()))  # the lines; text and ground are grey
        if coloured[-1] > 1000:
            break
    assert max(coloured) > 1000
