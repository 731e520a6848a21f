"""Checks that output files can be written, so that a command fails before it measures for hours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpccoll.errors import UsageError


@contextmanager
def explain_write_errors(path: str | Path, option: str) -> Iterator[None]:
    """Context manager that converts an OSError in its body to a UsageError, which names the command-line option."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of standard output has ended, which is no error: `hpccoll ... | head`
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "name a file in a writable directory"
        raise UsageError(f"{option} {path}: cannot write this file ({reason}); {remedy}") from error


def require_writable(path: str | Path, option: str) -> None:
    """Raise UsageError unless `path` can be opened for writing; does not change or leave behind any file."""
    file = Path(path)
    with explain_write_errors(path, option):
        new = not file.exists()
        file.open("ab").close()
        if new:
            file.unlink()
