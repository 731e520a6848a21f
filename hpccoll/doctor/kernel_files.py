"""Read the small text files of /proc and /sys, any of which may be missing or unreadable."""

from __future__ import annotations

from pathlib import Path


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
