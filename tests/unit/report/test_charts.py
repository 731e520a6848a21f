"""The charts of a report: positions on axes, well-formed SVG, and escaping of text from files."""

from __future__ import annotations

import math
import re
from importlib import resources
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.measure.display.series_styles import COLOURS
from hpccoll.report.axis_scale import choose_ticks, make_linear_scale, make_log_scale
from hpccoll.report.curves import group_curves
from hpccoll.report.heat_map import HeatMap, HeatMapCell, interpolate_color
from hpccoll.report.heat_map import render_heat_map as heat_svg
from hpccoll.report.line_chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    ChartLine,
    ChartPoint,
    LineChart,
    render_line_chart,
)
from hpccoll.report.line_styles import BOUND_STYLE, MUTED_STYLE, LineStyle, choose_line_styles
from hpccoll.report.number_format import format_bounds, format_bytes_per_s, format_number, format_seconds

RING = LineStyle("c1", "M0 0h1z")
SVG = "{http://www.w3.org/2000/svg}"
positive = st.floats(1e-9, 1e12)


def parse_svg(text: str) -> ET.Element:
    """Return an <svg> element as a parsed tree."""
    return ET.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def make_chart(*lines: ChartLine, **more) -> LineChart:
    """Return a chart of the given lines."""
    given = {"element_id": "x1", "title": "Time", "description": "all_reduce", "x_label": "size"} | more
    return LineChart(format_x=str, format_y=format_seconds, lines=lines, **given)


def find_class(root: ET.Element, name: str) -> list[ET.Element]:
    """Return the elements that have a CSS class."""
    return [each for each in root.iter() if name in each.get("class", "").split()]


@given(st.lists(positive, min_size=1, max_size=9))
def test_positions_are_within_the_axis_and_keep_the_order(values):
    for scale in (make_log_scale(values, 300, 10), make_linear_scale(values, 300, 10)):
        places = [scale.position_of(value) for value in sorted(values)]
        assert all(10 - 1e-6 <= place <= 300 + 1e-6 for place in places)
        assert places == sorted(places, reverse=True)
        shown = choose_ticks(scale)
        assert shown == sorted(shown)
        assert len(shown) <= 12
        assert all(scale.low <= value <= scale.high for value in shown)


@given(st.floats(1e-9, 1e9), st.floats(1.5, 1e6))
def test_an_axis_has_at_least_two_ticks(low, factor):
    assert len(choose_ticks(make_log_scale([low, low * factor * 2], 0, 1))) >= 2
    assert len(choose_ticks(make_linear_scale([low], 0, 1))) >= 2


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0 µs"), (2.4e-9, "2.4 ns"), (2.512e-6, "2.51 µs"), (999.8e-6, "1 ms"), (0.0123, "12.3 ms"), (12, "12 s")],
)
def test_format_seconds_chooses_the_unit(seconds, told):
    assert format_seconds(seconds) == told


def test_format_bandwidths_and_intervals():
    assert format_bytes_per_s(11.8e9) == "11.8 GB/s"
    assert format_bytes_per_s(49.96e6) == "50 MB/s"
    assert format_bounds(2e-6, 3e-6, format_seconds) == "[2, 3] µs"
    assert format_bounds(2e-6, 3e-3, format_seconds) == "[2 µs, 3 ms]"
    assert format_number(1234567) == "1,234,567"
    assert format_number(1e-5) == "0.00001"


def test_markers_and_lines_are_at_the_positions_of_the_scales():
    points = tuple(ChartPoint(8.0 * 8**at, 1e-6 * 10**at, 0.9e-6 * 10**at, 1.2e-6 * 10**at) for at in range(4))
    root = parse_svg(render_line_chart(make_chart(ChartLine("ring", RING, points))))
    places = [tuple(map(float, re.findall(r"[\d.]+", mark.get("transform", "")))) for mark in find_class(root, "mark")]
    assert len(places) == 4
    assert all(LEFT < x < WIDTH - RIGHT and TOP < y < HEIGHT - BOTTOM for x, y in places)
    steps = {(round(b[0] - a[0]), round(b[1] - a[1])) for a, b in pairwise(places)}
    assert len(steps) == 1  # equal factors are equal lengths on both axes
    ((right, up),) = steps
    assert right > 0 > up
    (path,) = find_class(root, "path")
    assert path.get("d") == "M" + "L".join(f"{x:g} {y:g}" for x, y in places)


def test_a_chart_contains_both_vertical_scales():
    points = (ChartPoint(8, 1e-6, 1e-6, 1e-6), ChartPoint(64, 1e-5, 1e-5, 1e-5), ChartPoint(512, 1e-4, 1e-4, 1e-4))
    root = parse_svg(render_line_chart(make_chart(ChartLine("ring", RING, points))))
    (path,) = find_class(root, "path")
    assert path.get("d") != path.get("data-alt")
    heights = [float(re.findall(r"[\d.]+", mark.get("data-alt", ""))[1]) for mark in find_class(root, "mark")]
    floor = HEIGHT - BOTTOM
    assert (floor - heights[1]) / (floor - heights[2]) == pytest.approx(0.1, abs=0.01)  # linear, from zero
    linear_first = parse_svg(render_line_chart(make_chart(ChartLine("ring", RING, points), is_log=False)))
    assert find_class(linear_first, "path")[0].get("d") == path.get("data-alt")


def test_a_chart_is_accessible_to_screen_readers():
    root = parse_svg(
        render_line_chart(make_chart(ChartLine("ring", RING, (ChartPoint(8, 2e-6, 1e-6, 3e-6, "12 iterations"),))))
    )
    assert root.get("role") == "img"
    named = root.get("aria-labelledby", "").split()
    assert [root.find(f".//*[@id='{name}']").text for name in named] == ["Time", "all_reduce"]
    (mark,) = find_class(root, "mark")
    assert mark.find(f"{SVG}title").text == "ring, 8: 2 µs [1, 3] µs; 12 iterations"
    (bars,) = find_class(root, "bars")
    assert bars.get("d", "").startswith("M")


def test_names_from_files_are_escaped():
    evil = '"><script>alert(1)</script>'
    point = ChartPoint(8, 1e-6, 1e-6, 1e-6, evil)
    root = parse_svg(render_line_chart(make_chart(ChartLine(evil, RING, (point,)), title=evil, description=evil)))
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    cells = (
        HeatMapCell(0, 1, 1.0, evil, evil, is_broken=False),
        HeatMapCell(1, 0, None, evil, evil, is_broken=True),
    )
    root = parse_svg(heat_svg(HeatMap("h", evil, evil, (evil, "b"), cells, str, higher_is_better=True)))
    assert not [each for each in root.iter() if each.tag.endswith("script")]


def test_values_that_are_not_positive_are_left_out():
    nothing = ChartLine("ring", RING, (ChartPoint(0, 1e-6, 1e-6, 1e-6), ChartPoint(8, 0.0, 0.0, 0.0)))
    assert render_line_chart(make_chart(nothing)) == ""
    some = ChartLine("tree", MUTED_STYLE, (ChartPoint(8, 1e-6, 1e-6, 1e-6),))
    root = parse_svg(render_line_chart(make_chart(nothing, some)))
    assert [line.get("data-name") for line in find_class(root, "line")] == ["tree"]
    assert len(find_class(root, "mark")) == 1


def test_the_bound_is_a_line_without_markers():
    bound = ChartLine(
        "the lower bound", BOUND_STYLE, (ChartPoint(8, 1e-6, 1e-6, 1e-6), ChartPoint(64, 1e-6, 1e-6, 1e-6))
    )
    root = parse_svg(render_line_chart(make_chart(bound)))
    assert len(find_class(root, "path")) == 1
    assert not find_class(root, "mark")


def make_matrix(count: int, broken: tuple[int, int] | None = None, slow: tuple[int, int] | None = None) -> HeatMap:
    """Return a heat map with a broken and a slow link."""
    cells = [
        HeatMapCell(
            row,
            column,
            None if (row, column) == broken else 2e9 if (row, column) == slow else 1e10,
            f"n{row} to n{column}",
            "said",
            (row, column) == broken,
        )
        for row in range(count)
        for column in range(count)
        if row != column
    ]
    names = tuple(f"n{at}" for at in range(count))
    return HeatMap("h1", "Bandwidth", "about", names, tuple(cells), format_bytes_per_s, higher_is_better=True)


def test_a_heat_map_shows_slow_and_broken_directions():
    root = parse_svg(heat_svg(make_matrix(4, broken=(1, 2), slow=(3, 0))))
    told = {cell.get("data-head"): cell for cell in root.iter() if cell.get("data-head")}
    assert len(told) == 12
    assert "broken" in told["n1 to n2"].get("class", "")
    fine, slow = (told[name].get("style", "") for name in ("n0 to n1", "n3 to n0"))
    assert fine != slow
    red, _, blue = map(int, re.findall(r"\d+", slow))
    assert red > 2 * blue
    assert len(find_class(root, "self")) == 4
    words = [text for each in root.iter() if each.tag.endswith("text") for text in each.itertext()]
    assert "GB/s" in words
    assert "2" in words


@pytest.mark.parametrize("count", [1, 17, 65])
def test_a_large_heat_map_has_a_limited_size(count):
    drawn = heat_svg(make_matrix(count, broken=(0, count - 1), slow=(count - 1, 0)))
    root = parse_svg(drawn)
    assert len(drawn) < 400_000
    assert bool(list(root.iter(f"{SVG}image"))) == (count > 64)


def test_colors_darken_on_both_sides_of_the_reference():
    def light(share):
        red, green, blue = interpolate_color(share)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    below = [light(share / 100) for share in range(10, 90, 5)]
    above = [light(share / 100) for share in range(100, 200, 10)]
    assert below == sorted(below)
    assert above == sorted(above, reverse=True)
    assert interpolate_color(1e-6) == interpolate_color(0.1)
    assert interpolate_color(1e6) == interpolate_color(2.0)
    assert math.isfinite(light(0.1))


def test_styles_within_an_operation_differ_unless_muted():
    from hpccoll.report.load import load_results
    from tests.unit.report.test_load import FOUR, TWO

    drawn = group_curves(load_results([TWO, FOUR]).rows)
    styles = choose_line_styles(case for picture in drawn for case in picture.cases)
    for picture in drawn:
        found = styles[picture.setting.op]
        loud = [found[name] for name in picture.implementations if not found[name].is_muted]
        assert len({style.css_class for style in loud}) == len({style.marker for style in loud}) == len(loud) > 1
        assert found[next(name for name in found if name.engine == "mpi")].css_class == "mpi"


def test_the_style_sheet_has_the_colours_of_the_plot():
    sheet = (resources.files("hpccoll.report") / "templates" / "style.css").read_text()
    light, dark = sheet.split("@media", 1)
    for name, colour in COLOURS.items():
        assert f"--{name}: {colour};" in light
        assert f"--{name}: " in dark
        assert f".{name} {{ --c: var(--{name}); }}" in sheet


def test_one_slow_node_of_four_stands_out():
    slow = [
        HeatMapCell(row, column, 2.5e9 if 2 in (row, column) else 1e10, f"n{row} to n{column}", "said", is_broken=False)
        for row in range(4)
        for column in range(4)
        if row != column
    ]
    names = tuple(f"n{at}" for at in range(4))
    root = parse_svg(heat_svg(HeatMap("h1", "t", "a", names, tuple(slow), format_bytes_per_s, higher_is_better=True)))
    fills = {str(cell.get("data-head")): cell.get("style", "") for cell in find_class(root, "cell")}
    usual = {f"fill:rgb({' '.join(map(str, interpolate_color(1.0)))})"}
    assert {fill for name, fill in fills.items() if "n2" not in name} == usual
    assert {fill for name, fill in fills.items() if "n2" in name} == {
        f"fill:rgb({' '.join(map(str, interpolate_color(0.25)))})"
    }
