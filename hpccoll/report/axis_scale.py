"""Axes: from values to places on paper, and the values that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MOST_TICKS = 7
_NARROW, _WIDE = 0.9, 2.2  # decades: below, ticks are at equal steps; above, at powers of ten alone


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Values from `low` to `high` on paper from `start` to `end` (pixels, either way round)."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def position_of(self, value: float) -> float:
        """Return the place of a value; what is beyond the ends stands at the end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def make_log_scale(values: Sequence[float], start: float, end: float, margin: float = 0.06) -> AxisScale:
    """Return a logarithmic scale that holds all values, which are above zero, with some room at both ends."""
    low, high = min(values), max(values)
    if high / low < 2:  # a line that is nearly flat is not blown up to fill the picture
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(2), middle * math.sqrt(2)
    room = (high / low) ** margin
    return AxisScale(low / room, high * room, start, end, log=True)


def make_linear_scale(values: Sequence[float], start: float, end: float) -> AxisScale:
    """Return a linear scale from zero to a little above the largest value."""
    return AxisScale(0.0, max(values) * 1.06 or 1.0, start, end, log=False)


def choose_ticks(scale: AxisScale) -> list[float]:
    """Return what to write beside an axis: powers of ten, with 2 and 5 between where there is room, or equal steps."""
    if not scale.log:
        step = _round_up_step(scale.high / _MOST_TICKS)
        return [at * step for at in range(int(scale.high / step + 1e-9) + 1)]
    decades = math.log10(scale.high / scale.low)
    if decades < _NARROW:
        step = _round_up_step((scale.high - scale.low) / (_MOST_TICKS - 2))
        return [at * step for at in range(math.ceil(scale.low / step), math.floor(scale.high / step) + 1)]
    between = (1.0, 2.0, 5.0) if decades < _WIDE else (1.0,)
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    every = max(-(-(last - first) // (_MOST_TICKS + 1)), 1)
    powers = [power for power in range(first, last + 1) if (power - first) % every == 0]
    found = [step * 10.0**power for power in powers for step in between]
    return [value for value in found if scale.low <= value <= scale.high]


def thin_values(values: Sequence[float], most: int) -> list[float]:
    """Return evenly chosen values, the first among them, so that at most `most` are written."""
    every = max(-(-len(values) // most), 1)
    return list(values[::every])


def _round_up_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= least * (1 - 1e-9))


def format_number(value: float) -> str:
    """Return a number in three digits without exponent: 0.0012, 20, 1,200."""
    if value >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    if "e" in text:
        text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text


def format_seconds(value: float) -> str:
    """Return a time in the unit that keeps it short: `2.78 ms`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit * 0.9995:
            return f"{format_number(value / unit)} {name}"
    return f"{format_number(value / 1e-6)} µs" if value >= 1e-8 or not value else f"{format_number(value / 1e-9)} ns"


def format_bytes_per_s(value: float) -> str:
    """Return a bandwidth in decimal units: `1.2 GB/s`."""
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= unit * 0.9995:
            return f"{format_number(value / unit)} {name}"
    return f"{format_number(value)} B/s"


def format_interval(low: float, high: float, tell: Callable[[float], str]) -> str:
    """Return an interval, with its unit once where both ends have the same: `[2.44, 2.53] µs`."""
    (one, _, unit), (other, _, also) = (tell(value).partition(" ") for value in (low, high))
    if unit == also:
        return f"[{one}, {other}]" + (f" {unit}" if unit else "")
    return f"[{tell(low)}, {tell(high)}]"


def format_factor(value: float) -> str:
    """Return a ratio: `2.5x`."""
    return f"{format_number(value)}x"
