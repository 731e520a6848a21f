"""Makes strings from files and other hosts safe to print in a terminal, which would obey control characters."""

from __future__ import annotations


def escape_unprintable(text: str) -> str:
    r"""Return a string whose unprintable characters, such as those of terminal commands, are escaped as in `\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
