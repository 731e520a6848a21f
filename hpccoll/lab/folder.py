"""What a lab leaves of its folder: nothing, but for what jobs put into the shared one of a folder that has a name."""

from __future__ import annotations

import shutil
from pathlib import Path

SHARED = "shared"


def remove(path: Path) -> None:
    """Remove a file or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def clear(folder: Path, *, keep: bool) -> None:
    """Remove a lab's folder; if asked to `keep` results, all but a shared folder that holds something."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name != SHARED or not keep:
            remove(path)
    for path in (folder / SHARED, folder):
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:  # it holds something
            return
