"""Plots: every row is drawn where it belongs, and lines can be told apart without colour."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from msgspec.structs import replace

from hpccoll.errors import UsageError
from hpccoll.measure.display.plot import draw_figure, write_plot
from hpccoll.measure.display.series_styles import COLOURS, MAX_COLOURED
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.results.measured_case import list_cases
from hpccoll.measure.results.output_file import require_picture
from hpccoll.records import CollectiveCase, StopReason

ROW = CollectiveCase("all_reduce", "mpi", None, "host", True, 8, 2, "float32", "sum", None, 4, 1)
NAMES = [
    *[("mpi", None), ("gloo", None), ("nccl", None), ("torch-hpccoll", None)],
    *[("hpccoll", name) for name in ("ring", "tree", "recursive_doubling", "rabenseifner", "double_tree", "auto")],
    *[("hpccoll", name) for name in ("swing", "bine", "linear")],
]
SIZES = [8 * 4**k for k in range(12)]
STARTS = {b"\x89PNG": ".png", b"<?xml": ".svg", b"%PDF-": ".pdf"}


def race(names=NAMES[:5], sizes=SIZES, places=(True,), **row):
    """Rows whose samples spread around a latency and a bandwidth."""
    rng = np.random.default_rng(5)
    return [
        make_collective_record(
            replace(ROW, engine=engine, algorithm=algorithm, nbytes=size, count=size // 4, in_place=place, **row),
            tuple((5 + at + size / 2000) * rng.lognormal(0, 0.2, 20)),
            StopReason.CONVERGED,
            0,
        )
        for at, (engine, algorithm) in enumerate(names)
        for size in sizes
        for place in places
    ]


def winners(names):
    """Rows in which each of the names in turn is the fastest at one size."""
    return [
        make_collective_record(record, tuple(sample / 10 for sample in record.samples_us), record.stop, 0)
        if (record.engine, record.algorithm) == names[-1 - SIZES.index(record.nbytes) % len(names)]
        else record
        for record in race(names)
    ]


def drawn(records):
    """The latency panel, the bandwidth panel and the legend's margin of the first row."""
    figure = draw_figure(list_cases(records))
    return figure.subfigs[0].axes


@pytest.mark.parametrize(("start", "suffix"), [*STARTS.items(), (b"\x89PNG", ".PNG")])
def test_the_suffix_gives_the_format(tmp_path, start, suffix):
    path = tmp_path / f"plot{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_plot(race(NAMES, places=(False, True)), path)
    assert path.read_bytes().startswith(start)


def test_every_row_is_a_point_of_its_line():
    records = race()
    latency, bandwidth, _ = drawn(records)
    order = [("mpi", None), ("nccl", None), ("gloo", None), ("torch-hpccoll", None), ("hpccoll", "ring")]
    for name, line, other in zip(order, latency.lines, bandwidth.lines, strict=True):
        mine = [record for record in records if (record.engine, record.algorithm) == name]
        assert list(line.get_xdata()) == SIZES
        assert list(line.get_ydata()) == [record.time_us.p50 for record in mine]
        assert list(other.get_ydata()) == pytest.approx([record.busbw for record in mine])


def test_bands_are_the_intervals():
    records = race(NAMES[:1])
    latency, bandwidth, _ = drawn(records)
    assert 0.1 < latency.collections[0].get_alpha() < 0.5
    corners = {tuple(corner) for corner in latency.collections[0].get_paths()[0].vertices}
    for record in records:
        assert (record.nbytes, record.time_us.p50_low) in corners
        assert (record.nbytes, record.time_us.p50_high) in corners
    fastest = records[0].nbytes / records[0].time_us.p50_low / 1e3 * 1.5
    heights = bandwidth.collections[0].get_paths()[0].vertices[:, 1]
    assert np.isclose(heights, fastest).any()


def test_both_axes_of_both_panels_are_logarithmic():
    for axes in drawn(race())[:2]:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_no_two_coloured_lines_share_a_colour_or_a_marker():
    every = drawn(winners(NAMES))[0].lines
    loud = [line for line in every if line.get_color() != COLOURS["muted"]]
    assert len(loud) == 4 + MAX_COLOURED < len(NAMES) == len(every)
    assert len({line.get_marker() for line in loud}) == len({line.get_color() for line in loud}) == len(loud)


def test_lines_that_are_fastest_nowhere_are_grey_and_thin():
    records = race([("mpi", None), ("hpccoll", "ring"), ("hpccoll", "tree"), ("hpccoll", "auto")])
    for at, record in enumerate(records):
        if record.algorithm in ("ring", "tree"):
            samples = tuple(3 * sample for sample in record.samples_us)
            records[at] = make_collective_record(record, samples, record.stop, 0)
    latency, _, margin = drawn(records)
    by_label = dict(zip([text.get_text() for text in margin.get_legend().get_texts()], latency.lines, strict=True))
    assert list(by_label) == ["mpi", "auto", "ring", "tree"]
    grey = [label for label, line in by_label.items() if line.get_color() == COLOURS["muted"]]
    assert grey == ["ring", "tree"]
    assert by_label["ring"].get_linewidth() < by_label["auto"].get_linewidth()
    assert by_label["ring"].get_marker() != by_label["tree"].get_marker()
    assert len(latency.collections) == 2  # grey lines have no bands
    assert "grey: fastest at no size" in margin.get_legend().get_title().get_text()


def test_an_algorithm_looks_alike_whatever_it_is_beside():
    alone, among = drawn(winners([("hpccoll", "ring")]))[0], drawn(winners(NAMES))[0]
    ring = alone.lines[0]
    assert any(ring.get_color() == line.get_color() and ring.get_marker() == line.get_marker() for line in among.lines)


def test_in_place_is_solid_and_out_of_place_dashed():
    records = race(NAMES[:1], places=(False, True))
    latency, _, margin = drawn(records)
    styles = {line.get_ydata()[0]: line.get_linestyle() for line in latency.lines}
    for record in records[:2]:
        assert styles[record.time_us.p50] == ("-" if record.in_place else "--")
    words = [text.get_text() for text in margin.get_legend().get_texts()]
    assert words == ["mpi", "in place", "out of place"]


def test_a_single_place_is_solid_and_in_the_title():
    figure = draw_figure(list_cases(race(NAMES[:1], places=(False,))))
    row = figure.subfigs[0]
    assert row.get_suptitle() == "all_reduce, float32, sum, 4 ranks on 1 node, host memory, out-of-place"
    assert row.axes[0].lines[0].get_linestyle() == "-"


def test_sizes_are_named_in_binary_units():
    axes = drawn(race())[0]
    axes.figure.canvas.draw()
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels[0] == "8 B"
    assert "4 KiB" in labels
    assert 4 <= len(labels) <= 9
    assert len(set(labels)) == len(labels)


def test_heights_are_named_in_full():
    axes = drawn([make_collective_record(record, (4e6, 5e6, 6e6), record.stop, 0) for record in race(NAMES[:1])])[1]
    axes.figure.canvas.draw()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert "0.00001" in labels
    assert not [label for label in labels if "e" in label]


def test_the_legend_covers_no_data():
    figure = draw_figure(list_cases(race(NAMES, places=(False, True))))
    figure.canvas.draw()
    latency, bandwidth, margin = figure.subfigs[0].axes
    legend = margin.get_legend()
    assert legend is not None
    for axes in (latency, bandwidth):
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_each_operation_has_its_own_row():
    figure = draw_figure(list_cases([*race(), *race(op="reduce", root=0)]))
    assert [row.get_suptitle().split(",")[0] for row in figure.subfigs] == ["all_reduce", "reduce"]


def test_one_rank_has_a_latency_and_no_bus_bandwidth(tmp_path):
    records = race(ranks=1)
    latency, bandwidth, _ = drawn(records)
    assert latency.lines
    assert not bandwidth.lines
    assert "no bus bandwidth" in bandwidth.texts[0].get_text()
    write_plot(records, tmp_path / "one.png")


def test_a_single_point_can_be_drawn(tmp_path):
    write_plot(race(NAMES[:1], sizes=[8]), tmp_path / "point.png")


def test_rows_without_bytes_are_left_out(tmp_path):
    assert list(drawn(race(sizes=[0, 8, 64]))[0].lines[0].get_xdata()) == [8, 64]
    with pytest.raises(UsageError, match="no row has more than 0 bytes"):
        write_plot(race(op="barrier", sizes=[0], redop=None), tmp_path / "none.png")


@pytest.mark.parametrize("name", ["plot.gif", "plot", "plot.jpeg"])
def test_another_suffix_is_refused_before_and_after(tmp_path, name):
    for attempt in (lambda: require_picture(tmp_path / name, "--plot"), lambda: write_plot(race(), tmp_path / name)):
        with pytest.raises(UsageError, match=r"--plot .*\.png, \.svg, \.pdf"):
            attempt()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_before_and_after(tmp_path):
    path = tmp_path / "missing" / "plot.png"
    for attempt in (lambda: require_picture(path, "--plot"), lambda: write_plot(race(), path)):
        with pytest.raises(UsageError, match=r"--plot .*missing"):
            attempt()


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path):
    require_picture(tmp_path / "plot.svg", "--plot")
    assert not list(tmp_path.iterdir())


def test_pyplot_is_left_alone(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    write_plot(race(), tmp_path / "plot.png")
    assert ("matplotlib.pyplot" in sys.modules) == before
