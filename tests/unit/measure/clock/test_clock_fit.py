"""Models of clocks, fitted to ping-pongs whose true offset and drift are known."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.errors import UnknownNameError
from hpccoll.measure.clock import CLOCK_NAMES, GlobalClock, SkewedClock, get_clock_scheme
from hpccoll.measure.clock.clock_fit import (
    drop_doubtful_drift,
    fit_offset_bounds,
    fit_usual_round_trip,
    fit_weighted_exchanges,
)
from hpccoll.measure.clock.ping_pong import BatchPlan, PingPongs
from hpccoll.measure.clock.schemes import list_star_rounds, list_tree_rounds
from hpccoll.recordings import ClockModel

OFFSET_S, DRIFT = 0.25, -5e-5


def make_ping_pongs(delayed: float, batches: int = 50, start_s: float = 1000.0) -> PingPongs:
    """Return ping-pongs of 0.5 s with the offset and drift above; a share `delayed` is late in one direction."""
    random = np.random.default_rng(1)
    sent = start_s + np.linspace(0, 0.5, batches)[:, None] + np.arange(20) * 3e-6
    shape = (2, *sent.shape)
    delays = 1e-6 + random.exponential(2e-8, shape) + (random.random(shape) < delayed) * random.exponential(1e-3)
    arrived = sent + delays[0]
    return PingPongs(sent, arrived + OFFSET_S + DRIFT * (arrived - 1000), arrived + delays[1])


def error_s(model: ClockModel, client_s: float) -> float:
    """Return the error of the model at a time of the client's clock."""
    return model.apply(client_s) - (client_s + OFFSET_S + DRIFT * (client_s - 1000))


@pytest.mark.parametrize("delayed", [0.0, 0.5, 0.9])
def test_the_model_of_weighted_exchanges_is_right_even_if_most_messages_are_late(delayed):
    model = fit_weighted_exchanges(make_ping_pongs(delayed))
    assert model.drift == pytest.approx(DRIFT, abs=1e-7)
    for client_s in (1000, 1000.5, 1010):
        assert abs(error_s(model, client_s)) < 1e-6
        assert abs(error_s(model, client_s)) <= model.compute_error_s(client_s)


def test_the_usual_round_trip_is_right_only_if_no_message_is_late():
    assert abs(error_s(fit_usual_round_trip(make_ping_pongs(0.0)), 1000.5)) < 1e-6
    assert abs(error_s(fit_usual_round_trip(make_ping_pongs(0.5)), 1000.5)) > 1e-5


def test_bounds_of_the_offset_contain_the_true_offset():
    model = fit_offset_bounds(make_ping_pongs(0.5, batches=1))
    assert model.drift == 0
    assert abs(error_s(model, 1000)) <= model.error_s <= 1.1e-6


def test_one_batch_gives_an_offset_without_drift():
    model = fit_weighted_exchanges(make_ping_pongs(0.0, batches=1))
    assert model.drift == 0
    assert abs(error_s(model, 1000)) < 1e-6


def test_measurements_of_a_longer_time_make_the_drift_more_precise():
    first, later = make_ping_pongs(0.5), make_ping_pongs(0.5, batches=5, start_s=1010)
    both = fit_weighted_exchanges(first.extend(later))
    assert both.drift_error < fit_weighted_exchanges(first).drift_error / 10
    assert abs(error_s(both, 1020)) < 1e-6
    assert len(first.extend(later).forget_before(1005).sent) == 5


def test_a_plan_asks_for_more_batches_until_some_are_fast_and_the_drift_is_precise():
    plan = BatchPlan(batches=10, exchanges=10, pause_s=0)
    begun_s = [float(i) for i in range(40)]
    assert plan.needs_more(begun_s[:9], [1.0] * 9, 1.0)
    assert not plan.needs_more(begun_s[:10], [1.0] * 10, 1.0)
    assert plan.needs_more(begun_s[:10], [1.0] * 2 + [5.0] * 8, 1.0)
    assert not plan.needs_more(begun_s[:11], [1.0] * 3 + [5.0] * 8, 1.0)
    assert not plan.needs_more(begun_s, [5.0] * 40, 1.0)  # the cores are too busy
    precise = BatchPlan(batches=10, exchanges=10, pause_s=0, horizon_s=100)
    assert precise.needs_more(begun_s[:10], [1.0] * 10, 1.0)
    assert not precise.needs_more(begun_s[:39], [1.0] * 39, 1.0)


def test_two_models_in_turn_map_with_both_and_have_the_errors_of_both():
    first, second = ClockModel(10, 0.5, 1e-3, 1e-6, 1e-9), ClockModel(20, -2.0, 2e-3, 2e-6, 1e-8)
    both = first.then(second)
    for clock_s in (10.0, 400.0):
        assert both.apply(clock_s) == pytest.approx(second.apply(first.apply(clock_s)))
    assert both.compute_error_s(10) == pytest.approx(1e-6 + 2e-6 + 9.5 * 1e-8)
    assert both.compute_error_s(30) == pytest.approx(1e-6 + 2e-6 + 9.5 * 1e-8 + 20 * 1.1e-8)


def make_asymmetric_ping_pongs(drift: float, shift_s: float) -> PingPongs:
    """Return ping-pongs of 2 s with round trips of 2 us, of which answers take `shift_s` longer from the middle on."""
    sent = np.linspace(0, 2, 50)[:, None] + np.arange(10) * 3e-6
    late = np.where(sent > 1, shift_s, 0.0)
    return PingPongs(sent, (sent + 1e-6 - late) * (1 + drift), sent + 2e-6)


def test_a_drift_that_unequal_messages_could_cause_is_dropped():
    measured = make_asymmetric_ping_pongs(drift=0.0, shift_s=5e-7)
    fitted = fit_weighted_exchanges(measured)
    assert abs(fitted.drift) > 2e-7
    kept = drop_doubtful_drift(fitted, measured)
    assert kept.drift == 0
    assert kept.drift_error >= abs(fitted.drift)
    assert abs(kept.apply(12.0) - 12.0) < 5e-7 < abs(fitted.apply(12.0) - 12.0)


@pytest.mark.parametrize("drift", [1.1e-6, -5e-5])
def test_a_drift_that_shifts_the_offset_by_more_than_a_round_trip_is_kept(drift):
    measured = make_asymmetric_ping_pongs(drift, shift_s=0.0)
    fitted = fit_weighted_exchanges(measured)
    assert drop_doubtful_drift(fitted, measured) == fitted
    assert fitted.drift == pytest.approx(drift, rel=1e-3)


def test_a_global_clock_maps_both_ways():
    clock = GlobalClock("hca3", lambda: 1004.0, ClockModel(1000, OFFSET_S, DRIFT, 0, 0), None, 0.0)
    assert clock.now() == clock.to_global(1004.0) == pytest.approx(1004 + OFFSET_S + 4 * DRIFT, abs=1e-9)
    assert clock.to_local(clock.now()) == pytest.approx(1004, abs=1e-9)


def test_a_skewed_clock_drifts_from_its_start():
    clock = SkewedClock(OFFSET_S, DRIFT, base=lambda: 1100.0, started_s=1000.0)
    assert clock() == pytest.approx(1100 + OFFSET_S + 100 * DRIFT, abs=1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 33])
def test_every_client_is_served_once_by_a_rank_that_has_a_clock(ranks):
    for rounds in (list_tree_rounds(ranks), list_star_rounds(ranks)):
        known = {0}
        for pairs in rounds:
            assert {reference for reference, _ in pairs} <= known
            known |= {client for _, client in pairs}
        assert known == set(range(ranks))
        assert sum(map(len, rounds)) == ranks - 1
    assert len(list_tree_rounds(ranks)) == (ranks - 1).bit_length()


def test_an_unknown_scheme_lists_the_valid_ones():
    with pytest.raises(UnknownNameError, match=r"unknown clock 'hca4'; .*hca3, jones_koenig, skampi"):
        get_clock_scheme("hca4")
    assert CLOCK_NAMES == ("hca3", "skampi", "jones_koenig")
