"""Checks that output files can be written, so that a command fails before it measures for hours."""

from __future__ import annotations

from pathlib import Path

from hpccoll.errors import UsageError


def describe_write_error(path: str | Path, option: str, error: OSError) -> UsageError:
    """Return the UsageError for a file that cannot be written; its message names the command-line option."""
    reason = error.strerror or str(error)
    return UsageError(f"{option} {path}: cannot write this file ({reason}); name a file in a writable directory")


def require_writable(path: str | Path, option: str) -> None:
    """Raise UsageError unless `path` can be opened for writing; does not change or leave behind any file."""
    file = Path(path)
    try:
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            file.unlink()
    except OSError as error:
        raise describe_write_error(path, option, error) from error
