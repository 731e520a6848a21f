"""Axes of charts: the position of a value in pixels, and the values at the ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")
_MAX_TICKS = 7
_NARROW, _WIDE = 0.9, 2.2  # decades; below _NARROW, ticks have equal steps; above _WIDE, all are powers of ten


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps values from `low` to `high` to pixels from `start` to `end`, linearly or, with `log`, logarithmically.

    `start` exceeds `end` on vertical axes, because SVG counts pixels downwards.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool

    def position_of(self, value: float) -> float:
        """Return the pixel of a value; a value outside the axis gets the pixel of the nearest end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            fraction = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            fraction = (inside - self.low) / (self.high - self.low)
        return self.start + fraction * (self.end - self.start)


def make_log_scale(values: Sequence[float], start: float, end: float, margin: float = 0.06) -> AxisScale:
    """Return a logarithmic scale that covers all `values`, which must be positive.

    Args:
        values: the values to show.
        start: the pixel of the scale's low end.
        end: the pixel of the scale's high end.
        margin: the space beyond the values at either end, as a fraction of their range.
    """
    low, high = min(values), max(values)
    if high / low < 2:  # keeps a nearly flat line from filling the whole height
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(2), middle * math.sqrt(2)
    padding = (high / low) ** margin
    return AxisScale(low / padding, high * padding, start, end, log=True)


def make_linear_scale(values: Sequence[float], start: float, end: float) -> AxisScale:
    """Return a linear scale from zero, at pixel `start`, to slightly above the largest value, at pixel `end`."""
    return AxisScale(0.0, max(values) * 1.06 or 1.0, start, end, log=False)


def choose_ticks(scale: AxisScale) -> list[float]:
    """Return the values at which to draw an axis's ticks, in ascending order.

    Linear and short logarithmic axes have ticks in equal steps. Longer logarithmic axes have ticks at powers of ten,
    and also at their multiples by 2 and 5 if there is room.
    """
    if not scale.log:
        step = _round_up_step(scale.high / _MAX_TICKS)
        return [index * step for index in range(int(scale.high / step + 1e-9) + 1)]
    decades = math.log10(scale.high / scale.low)
    if decades < _NARROW:
        step = _round_up_step((scale.high - scale.low) / (_MAX_TICKS - 2))
        return [index * step for index in range(math.ceil(scale.low / step), math.floor(scale.high / step) + 1)]
    multiples = (1.0, 2.0, 5.0) if decades < _WIDE else (1.0,)
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    stride = max(-(-(last - first) // (_MAX_TICKS + 1)), 1)
    ticks = [multiple * 10.0**power for power in range(first, last + 1, stride) for multiple in multiples]
    return [value for value in ticks if scale.low <= value <= scale.high]


def thin_values(values: Sequence[Value], most: int) -> list[Value]:
    """Return at most `most` of the values, in equal steps of their index from the first one, such as every third."""
    return list(values[:: max(-(-len(values) // most), 1)])


def _round_up_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= least * (1 - 1e-9))
