"""The state directory of a lab: its paths and its removal."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SHARED = "shared"


@dataclass(frozen=True, slots=True)
class LabPaths:
    """The paths of a lab's files in its state directory `dir`; the lab accepts jobs only from `user`."""

    dir: Path
    user: str

    @property
    def conf(self) -> Path:
        """The path of the lab's slurm.conf, the value of the environment variable SLURM_CONF."""
        return self.dir / "slurm.conf"

    @property
    def hosts(self) -> Path:
        """The path of the lab's hosts file, which is mounted over /etc/hosts."""
        return self.dir / "hosts"

    @property
    def socket(self) -> Path:
        """The Unix socket on which the supervisor listens."""
        return self.dir / "control"

    @property
    def shared(self) -> Path:
        """The directory for the files of SLURM jobs, visible to all nodes."""
        return self.dir / SHARED

    def log(self, name: str) -> Path:
        """Return the path of a daemon's log."""
        return self.dir / "log" / f"{name}.log"


def remove_path(path: Path) -> None:
    """Remove a file or a directory tree; ignore errors inside a tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def clear_state_dir(state_dir: Path, *, keep: bool) -> None:
    """Remove a lab's state directory; if `keep` is true, its subdirectory `shared` remains unless it is empty."""
    for path in list(state_dir.iterdir()) if state_dir.is_dir() else ():
        if path.name != SHARED or not keep:
            remove_path(path)
    for path in (state_dir / SHARED, state_dir):
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:  # not empty
            return
