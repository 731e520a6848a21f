"""Output files of commands: fail before hours of measuring, not after, if one cannot be written."""

from __future__ import annotations

from pathlib import Path

from hpccoll.errors import UsageError


def describe_write_error(path: str | Path, option: str, error: OSError) -> UsageError:
    """Return the UsageError for a file that cannot be written, naming the option that asked for it."""
    why = error.strerror or str(error)
    return UsageError(f"{option} {path}: cannot write there ({why}); name a file in a directory that you may write to")


def require_writable(path: str | Path, option: str) -> None:
    """Raise UsageError unless `path` can be written; keeps an existing file as it is, and removes a new one."""
    file = Path(path)
    try:
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            file.unlink()
    except OSError as error:
        raise describe_write_error(path, option, error) from error
