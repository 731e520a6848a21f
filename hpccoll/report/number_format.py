"""Functions that format times, bandwidths, ratios and intervals as short strings."""

from __future__ import annotations

from collections.abc import Callable


def format_number(value: float) -> str:
    """Return a number as a string: with three significant digits below 100, else as an integer: 0.0012, 20, 1,235."""
    if value >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    if "e" in text:
        text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text


def format_seconds(value: float) -> str:
    """Return a time, given in seconds, as a string with the unit s, ms, µs or (below 0.01 µs) ns: `2.78 ms`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit * 0.9995:
            return f"{format_number(value / unit)} {name}"
    return f"{format_number(value / 1e-6)} µs" if value >= 1e-8 or not value else f"{format_number(value / 1e-9)} ns"


def format_bytes_per_s(value: float) -> str:
    """Return a bandwidth, given in bytes/s, with the unit GB/s, MB/s, kB/s or B/s: `1.2 GB/s`."""
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= unit * 0.9995:
            return f"{format_number(value / unit)} {name}"
    return f"{format_number(value)} B/s"


def format_factor(value: float) -> str:
    """Return a ratio followed by an x, such as `2.5x`."""
    return f"{format_number(value)}x"


def format_bounds(low: float, high: float, format_value: Callable[[float], str]) -> str:
    """Return an interval, with the unit once if both ends have the same unit: `[2.44, 2.53] µs`."""
    (low_number, _, low_unit), (high_number, _, high_unit) = (format_value(end).partition(" ") for end in (low, high))
    if low_unit == high_unit:
        return f"[{low_number}, {high_number}]" + (f" {low_unit}" if low_unit else "")
    return f"[{format_value(low)}, {format_value(high)}]"
