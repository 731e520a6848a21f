"""The bounds of clock errors follow from the measured errors."""

from __future__ import annotations

import pytest

from hpccoll.measure.clock.residual import Residual


def test_the_errors_of_two_ranks_add_up_in_a_difference():
    residual = Residual((0.0, 2.0, -5.0, 1.0), (0.0, 1.0, 0.5, 3.0))
    assert residual.bound_us == 5.5
    assert residual.difference_bound_us == pytest.approx(5.5 + 4.0)


def test_a_difference_to_rank_0_has_the_error_of_the_other_rank():
    assert Residual((0.0, -2.0), (0.0, 1.0)).difference_bound_us == 3.0
    assert Residual((0.0,), (0.0,)).difference_bound_us == 0.0
