"""Result files: whether one can be written is found out before hours of measuring, not after."""

from __future__ import annotations

from pathlib import Path

from hpccoll.errors import UsageError


def unwritable(path: str | Path, option: str, error: OSError) -> UsageError:
    """Return the error for a result file that the system refuses, naming the option that asked for it."""
    why = error.strerror or str(error)
    return UsageError(f"{option} {path}: cannot write there ({why}); name a file in a directory that you may write to")


def require_writable(path: str | Path, option: str) -> None:
    """Raise UsageError unless `path` can be written; what is there stays as it is, what is not is not left behind."""
    file = Path(path)
    try:
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            file.unlink()
    except OSError as error:
        raise unwritable(path, option, error) from error
