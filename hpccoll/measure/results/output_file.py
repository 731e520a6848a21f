"""Checks that output files can be written, so that a command fails before it measures for hours; writes pictures."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccoll.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


@contextmanager
def explain_write_errors(path: str | Path, option: str) -> Iterator[None]:
    """Context manager that replaces an OSError in its block by a UsageError, which names `path` and `option`.

    `option` is the command-line option that named the file.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of standard output has ended, which is no error: `hpccoll ... | head`
    except OSError as error:
        reason = error.strerror or str(error)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "name a file on a disk with free space" if is_full else "name a file in a writable directory"
        raise UsageError(f"{option} {path}: cannot write this file ({reason}); {remedy}") from error


def require_writable(path: str | Path, option: str) -> None:
    """Raise UsageError, which names the command-line option `option`, unless `path` can be opened for writing.

    No file is changed or left behind.
    """
    file = Path(path)
    with explain_write_errors(path, option):
        new = not file.exists()
        file.open("ab").close()
        if new:
            file.unlink()


def require_picture(path: str | Path, option: str) -> None:
    """Raise UsageError unless `path` can be written and has a suffix of PICTURE_SUFFIXES; leaves no file behind.

    The error message names the command-line option `option`.
    """
    if Path(path).suffix.lower() not in PICTURE_SUFFIXES:
        raise UsageError(f"{option} {path}: the suffix gives the format; use one of {', '.join(PICTURE_SUFFIXES)}")
    require_writable(path, option)


def save_picture(figure: Figure, path: str | Path, option: str, **arguments: Any) -> None:
    """Write (or overwrite) a figure in the format that the suffix of `path` names; `arguments` are for `savefig`.

    Raises UsageError if the suffix is unknown or the file cannot be written.
    """
    require_picture(path, option)
    with explain_write_errors(path, option):
        figure.savefig(str(path), format=Path(path).suffix[1:].lower(), **arguments)
