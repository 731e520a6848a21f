"""Reads the small text files of /proc and /sys, any of which may be missing or refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def text(path: Path) -> str | None:
    """Return what the file says, without blanks around it; None where it is not here or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Return the whole number in the file; None where it holds none."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def numbers(ranges: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `0-3,8,10-11`, as the kernel writes sets of cores."""
    found: list[int] = []
    for part in filter(None, ranges.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def ranges(numbers_: Sequence[int]) -> str:
    """Return numbers as the kernel writes them: `0-3,8`."""
    parts: list[list[int]] = []
    for each in sorted(set(numbers_)):
        if parts and each == parts[-1][-1] + 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ",".join("-".join(map(str, part)) for part in parts)


def format_list(items: Sequence[object], most: int = 8) -> str:
    """Return items as a list for people, cut after `most` of them."""
    shown = ", ".join(str(item) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
