"""Read the small text files of /proc and /sys, any of which may be missing or unreadable, and format long lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MOST_LISTED = 8


def read_text(path: Path) -> str | None:
    """Return the text of a file without surrounding whitespace; None if the file is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return the integer in a file; None if the file is missing, unreadable or contains no integer."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def format_list(items: Sequence[object]) -> str:
    """Return the first MOST_LISTED items joined by commas, followed by `and N more` if there are more items."""
    shown = ", ".join(str(item) for item in items[:MOST_LISTED])
    return shown if len(items) <= MOST_LISTED else f"{shown} and {len(items) - MOST_LISTED} more"
