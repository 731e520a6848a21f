"""What a lab leaves of its folder: nothing, but for what jobs put into the shared one of a folder that has a name."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SHARED = "shared"


@dataclass(frozen=True, slots=True)
class LabPaths:
    """Where a lab lives.

    Args:
        dir: its folder.
        user: who runs it, and the only one whose jobs it takes: auth/none believes what it is told.
    """

    dir: Path
    user: str

    @property
    def conf(self) -> Path:
        """slurm.conf, which SLURM_CONF names to every command."""
        return self.dir / "slurm.conf"

    @property
    def hosts(self) -> Path:
        """What stands in for /etc/hosts."""
        return self.dir / "hosts"

    @property
    def control(self) -> Path:
        """The socket at which the keeper listens."""
        return self.dir / "control"

    @property
    def shared(self) -> Path:
        """The folder for what jobs read and write on all nodes."""
        return self.dir / SHARED

    def log(self, name: str) -> Path:
        """Return the log of a daemon."""
        return self.dir / "log" / f"{name}.log"


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
