"""Fitting a machine to measured times, and the map of winners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Link, Machine, Operation, simulate
from hpccoll.predict.fit import BAND_BORDERS, MeasuredRow, fit_machine
from hpccoll.predict.forecast import choose_forecast_chunks, fill_nodes, forecast, simulate_pipelined
from hpccoll.predict.forecast_grid import ForecastGrid, forecast_grid, list_rank_counts
from hpccoll.predict.winner_map import _find_label_place, draw_winner_map
from hpccoll.selection.cost_model import MAX_CHUNKS, choose_chunk_count

NAMES = ("ring", "recursive_doubling", "tree", "rabenseifner")
SIZES = [8 * 4**k for k in range(10)]
NEAR = Link(2e-6, 3e-10, 2e-6, bands=((BAND_BORDERS[0], 1.5e-10), (BAND_BORDERS[1], 6e-10)))
HERE = Machine("here", 4, NEAR, NEAR, 1, 2e-10, (), call_s=1.5e-6)
LIMITED = Machine("flat", 1, Link.one_port(1e-6, 1e-9), Link.one_port(1e-6, 1e-9), 1, 0.0)


def simulate_rows(machine: Machine, ranks: int, nodes: int, noise: float = 0.0) -> list[MeasuredRow]:
    """Return simulated times as measurements, with random noise."""
    draw = np.random.default_rng(3)
    rows = []
    for name in NAMES:
        algorithm = get_algorithm(Operation.ALL_REDUCE, name)
        plan = algorithm.plan(ranks)
        for nbytes in SIZES:
            seconds = simulate(plan, machine, nbytes // 4, trace=False).seconds
            seconds *= float(np.exp(noise * draw.standard_normal()))
            rows.append(MeasuredRow(algorithm, plan, nodes, nbytes // 4, 4, nbytes, seconds))
    return rows


def test_a_machine_is_found_again_from_its_times():
    found = fit_machine(simulate_rows(HERE, 4, 1), "times")
    assert found.machine.within.alpha_s == pytest.approx(2e-6, rel=0.02)
    assert found.machine.call_s == pytest.approx(1.5e-6, rel=0.05)
    assert found.machine.gamma_s_per_byte == pytest.approx(2e-10, rel=0.05)
    border, beta = found.machine.within.bands[0]
    assert border == BAND_BORDERS[0]
    assert beta == pytest.approx(1.5e-10, rel=0.1)
    assert found.compute_median_error(fitted=True) < 0.01
    assert found.compute_median_error(fitted=False) < 0.02


def test_nodes_are_told_apart():
    wide = Link.one_port(4e-5, 2e-9)
    machine = Machine("two nodes", 2, Link.one_port(2e-6, 3e-10), wide, 1, 1e-10)
    found = fit_machine(simulate_rows(machine, 4, 2), "times")
    assert found.machine.between.alpha_s == pytest.approx(4e-5, rel=0.05)
    assert found.machine.between.beta_s_per_byte == pytest.approx(2e-9, rel=0.05)
    assert found.compute_median_error(fitted=False) < 0.02


def test_fences_and_bands_between_nodes_are_found_again():
    near, bent = (
        Link.one_port(2e-6, 3e-10),
        Link(4e-5, 2e-9, 4e-5, bands=((BAND_BORDERS[0], 8e-9), (BAND_BORDERS[1], 4e-9))),
    )
    machine = Machine("two nodes", 2, near, bent, 1, 1e-10, (), 0.0, 3e-4)
    rows = simulate_rows(machine, 4, 2)
    for name in ("hierarchical_ring", "hierarchical_doubling"):
        algorithm = get_algorithm(Operation.ALL_REDUCE, name)
        plan = algorithm.plan(4, nodes=[2, 2])
        for nbytes in SIZES:
            seconds = simulate_pipelined(plan, machine, nbytes // 4, 4).seconds
            rows.append(MeasuredRow(algorithm, plan, 2, nbytes // 4, 4, nbytes, seconds))
    found = fit_machine(rows, "times")
    assert found.machine.fence_s == pytest.approx(3e-4, rel=0.05)
    assert found.machine.between.bands[0][1] == pytest.approx(8e-9, rel=0.1)
    assert found.compute_median_error(fitted=False) < 0.02


def test_parts_that_follow_cost_what_messages_of_their_size_do():
    # The first 16 KiB of a message cost next to nothing, what is beyond 10 ns a byte: messages of a part are 64 KiB.
    link = Link(1e-9, 1e-15, 1e-9, bands=((16 * 2**10, 1e-8),))
    machine = Machine("two nodes", 2, Link.one_port(1e-9, 1e-15), link, 1, 0.0)
    plan = get_algorithm(Operation.ALL_REDUCE, "hierarchical_ring").plan(4, nodes=[2, 2])
    nbytes = 2**24
    assert simulate_pipelined(plan, machine, nbytes // 4, 4).seconds == pytest.approx(0.75 * nbytes * 1e-8, rel=0.1)


def test_rows_that_were_disturbed_do_not_draw_the_others_with_them():
    rows = simulate_rows(HERE, 4, 1, noise=0.05)
    rows[::9] = [replace(row, seconds=row.seconds * 20) for row in rows[::9]]
    found = fit_machine(rows, "times")
    assert found.compute_median_error(fitted=False) < 0.1
    assert max(row.error for row in found.rows) > 0.9  # those remain what they are


def test_half_of_the_sizes_are_left_out():
    rows = simulate_rows(HERE, 4, 1)
    # Wrong only where it is not fitted: the fit is as good as ever, and the error shows.
    wrong = [replace(row, seconds=row.seconds * 1.5) if SIZES.index(row.nbytes) % 2 else row for row in rows]
    found = fit_machine(wrong, "times")
    assert found.compute_median_error(fitted=True) < 0.01
    assert found.compute_median_error(fitted=False) == pytest.approx(1 / 3, abs=0.02)


def test_a_band_whose_bytes_cost_nothing_is_joined_with_the_next():
    link = Link(2e-6, 1e-15, 2e-6, bands=((BAND_BORDERS[0], 3e-10), (BAND_BORDERS[1], 6e-10)))
    found = fit_machine(simulate_rows(replace(HERE, within=link, between=link), 4, 1)[:20], "times").machine.within
    assert BAND_BORDERS[0] not in [border for border, _ in found.bands]
    assert found.min_beta > 1e-11


def test_an_impossible_machine_is_refused():
    """Times that do not depend on the message size would take an infinite bandwidth."""
    rows = [replace(row, seconds=1e-5) for row in simulate_rows(HERE, 4, 1)[:20]]
    with pytest.raises(UsageError, match=r"no possible machine fits these times: .*bandwidth within nodes ended at"):
        fit_machine(rows, "times")


def test_a_machine_that_misses_the_sizes_left_out_is_refused():
    rows = simulate_rows(HERE, 4, 1)[:20]
    wrong = [replace(row, seconds=row.seconds * 3) if SIZES.index(row.nbytes) % 2 else row for row in rows]
    with pytest.raises(UsageError, match="misses sizes that were not fitted by 67%, more than 50%"):
        fit_machine(wrong, "times")


def test_what_cannot_be_fitted_is_refused():
    rows = simulate_rows(HERE, 4, 1)
    with pytest.raises(UsageError, match=r"times: a fit takes 4 sizes above 0 bytes; found 1 rows of 1 sizes"):
        fit_machine(rows[:1], "times")
    with pytest.raises(UsageError, match=r"several jobs \(4 ranks on 1 node; 4 ranks on 2 nodes\)"):
        fit_machine([*rows, *simulate_rows(HERE, 4, 2)], "times")


def test_sizes_and_layouts_are_those_of_a_run():
    assert Operation.ALL_REDUCE.count_elements(10, 4, 4) == 2
    assert Operation.ALL_GATHER.count_elements(8, 4, 4) == 1  # at least one element a block, as the bench counts
    assert Operation.BARRIER.count_elements(8, 4, 4) == 0
    assert fill_nodes(13, Machine.flat(1, 1, 1).with_ranks_per_node(6)) == (6, 6, 1)


@pytest.mark.parametrize("nbytes", [0, 8, 2**20, 2**26])
@pytest.mark.parametrize("name", ["ring", "chain", "double_tree", "hierarchical"])
def test_forecasts_take_the_chunks_of_a_run(name, nbytes):
    algorithm = get_algorithm(Operation.ALL_REDUCE, name)
    chunks = choose_chunk_count(algorithm, 16, nbytes, nbytes // 4)
    assert choose_forecast_chunks(algorithm, 16, nbytes) == chunks <= MAX_CHUNKS
    simulation = forecast(algorithm, 16, LIMITED, nbytes)
    assert simulation.seconds == forecast(algorithm, 16, LIMITED, nbytes, chunks=chunks).seconds


def test_chunks_are_no_more_than_elements():
    chain = get_algorithm(Operation.BROADCAST, "chain")
    assert choose_chunk_count(chain, 16, 2**26) > 3
    assert choose_chunk_count(chain, 16, 2**26, 3) == 3
    assert choose_chunk_count(chain, 16, 2**26, 0) == 1


def test_pipelining_pays_as_the_stated_cost_says():
    chain = get_algorithm(Operation.BROADCAST, "chain")
    chosen = forecast(chain, 16, LIMITED, 2**20).seconds
    assert chosen < forecast(chain, 16, LIMITED, 2**20, chunks=1).seconds / 5


def test_winners_at_the_ends_are_those_of_the_textbook():
    algorithms = [get_algorithm(Operation.ALL_REDUCE, name) for name in NAMES]
    told: list[str] = []
    winners = forecast_grid(algorithms, LIMITED, [4, 16], [8, 2**26], told.append)
    assert winners.find_winner(16, 8).name == "recursive_doubling"
    assert winners.find_winner(16, 2**26).name in ("ring", "rabenseifner")
    assert winners.find_winner(16, 2**26).name != winners.find_winner(16, 8).name
    assert len(told) == len(NAMES) * 2


def test_rank_counts_fill_nodes():
    six = LIMITED.with_ranks_per_node(6)
    assert list_rank_counts(50, six) == [2, 4, 6, 12, 24, 48]
    assert list_rank_counts(8, LIMITED) == [2, 4, 8]
    assert list_rank_counts(5, six) == [2, 4]


def draw_map(times, machine, ranks):
    """Draw the map of two algorithms from their times, shape (algorithms, ranks, sizes)."""
    algorithms = tuple(get_algorithm(Operation.ALL_REDUCE, name) for name in NAMES[: len(times)])
    sizes = tuple(8 << (2 * at) for at in range(np.shape(times)[2]))
    return algorithms, draw_winner_map(ForecastGrid(machine, algorithms, ranks, sizes, np.array(times, float)))


def read_borders(figure):
    """Return the points of all lines between regions."""
    paths = [path for each in figure.axes[0].collections for path in each.get_paths() if len(path.vertices) > 1]
    lines = [path.vertices for path in paths if path.vertices[0].tolist() != path.vertices[-1].tolist()]
    return np.concatenate(lines) if lines else np.empty((0, 2))


@pytest.mark.slow
def test_the_map_has_a_border_where_an_algorithm_cannot_run():
    infinite = [[[1] * 4, [1] * 4, [np.inf] * 4, [np.inf] * 4], [[9] * 4, [9] * 4, [2] * 4, [2] * 4]]
    algorithms, figure = draw_map(infinite, LIMITED.with_ranks_per_node(4), (2, 4, 8, 16))
    texts = {text.get_text() for text in figure.axes[0].texts} - {"one node"}
    assert texts == {each.name.replace("_", " ") for each in algorithms}
    assert not figure.legends
    x = read_borders(figure)[:, 0]
    assert len(x) > 100
    assert (abs(x - np.log2(4)) < 0.02).all()


def test_the_border_of_algorithms_that_tie_is_smooth():
    ring, doubling = [[1.0] * 5] * 3 + [[8.0] * 5] * 2, [[1.0] * 5] * 5
    tree = [[2.0 ** (2 * x - y + 0.5) for y in range(5)] for x in range(3)] + [[99.0] * 5] * 2
    _, figure = draw_map([ring, doubling, tree], LIMITED.with_ranks_per_node(2), (2, 4, 8, 16, 32))
    points = read_borders(figure)
    assert len(points) > 100
    diagonal = points[points[:, 0] < 2.9]
    assert len(diagonal) > 100
    assert abs(2 * (diagonal[:, 0] - 1) - (diagonal[:, 1] - 3) / 2 + 0.5).max() < 1e-3


def test_a_label_fits_into_a_region_that_is_larger_by_a_twelfth():
    assert _find_label_place(np.ones((24, 24), np.bool_), 24, 24) is None
    assert _find_label_place(np.ones((26, 26), np.bool_), 24, 24) == (12, 12)


def test_labels_are_inside_their_regions_and_small_regions_are_in_the_legend():
    corner = np.full((3, 4, 4), 5.0)
    corner[0] = 50.0
    corner[0, 3, 3] = 4.0  # wins in a corner of the map, without room for a label
    corner[1, :, :2] = 1.0
    _, figure = draw_map(corner, LIMITED.with_ranks_per_node(2), (2, 4, 8, 16))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    frame = axes.get_window_extent()
    for text in axes.texts[:2]:
        box = text.get_window_extent()
        assert frame.x0 < box.x0 < box.x1 < frame.x1
        assert frame.y0 < box.y0 < box.y1 < frame.y1
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [NAMES[0].replace("_", " ")]
    assert not legend.get_window_extent().overlaps(axes.get_tightbbox())


def test_the_map_names_every_region_and_is_drawn_alike_each_time(tmp_path):
    algorithms = [get_algorithm(Operation.ALL_REDUCE, name) for name in NAMES]
    winners = forecast_grid(
        algorithms, LIMITED.with_ranks_per_node(2), [2, 4, 8, 16, 32], [8 * 16**k for k in range(7)]
    )
    figure = draw_winner_map(winners, (8,))
    texts = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"recursive doubling", "rabenseifner", "8"} <= texts
    fastest = {winners.find_winner(n, size).name for n in winners.ranks for size in winners.sizes}
    assert {name.replace("_", " ") for name in fastest} >= texts - {"8", "one node"}
    assert "two kinds" not in figure.axes[0].get_title(loc="left")
    paths = [tmp_path / name for name in ("a.png", "b.png")]
    for path in paths:
        draw_winner_map(winners, (8,)).savefig(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
