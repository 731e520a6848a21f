"""The state directory of a lab: its paths, its protection against other users, and its removal.

A user who can write the state directory controls the lab, and the lab deletes the directory's contents. The directory
must therefore belong to this user, and files are removed only from a directory with the marker of a lab.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpccoll.errors import UsageError

SHARED = "shared"
MARKER = ".hpccoll-lab"  # a file that says that the directory is a lab's
_LONGEST_RUNTIME_DIR = 45  # characters; a state directory in it may have 60 characters


@dataclass(frozen=True, slots=True)
class LabPaths:
    """The paths of a lab's files in its state directory `dir`, and the user whose jobs the lab accepts."""

    dir: Path
    user: str

    @property
    def marker(self) -> Path:
        """The path of the file that marks the directory as a lab's."""
        return self.dir / MARKER

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
        """The path of the Unix socket on which the supervisor listens."""
        return self.dir / "control"

    @property
    def shared(self) -> Path:
        """The path of the directory for the files of SLURM jobs, visible to all nodes."""
        return self.dir / SHARED

    def log(self, name: str) -> Path:
        """Return the path of the log of the daemon `name`, such as `slurmctld` or `node1`."""
        return self.dir / "log" / f"{name}.log"


def get_default_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory of a lab that is started without the option --dir.

    The state directory is in XDG_RUNTIME_DIR if this variable has a short path of a directory that only this user can
    write, or else in the directory of temporary files.
    """
    runtime_dir = environ.get("XDG_RUNTIME_DIR", "")
    if runtime_dir.startswith("/") and len(runtime_dir) <= _LONGEST_RUNTIME_DIR and Path(runtime_dir).is_dir():
        status = os.stat(runtime_dir)  # noqa: PTH116
        if status.st_uid == os.geteuid() and not _is_writable_by_others(status):
            return Path(runtime_dir) / "hpccoll-lab"
    return Path(tempfile.gettempdir()) / f"hpccoll-lab-{os.geteuid()}"


def locate_state_dir(state_dir: Path) -> Path:
    """Return the absolute path of a state directory; symbolic links in it are resolved, except the last component."""
    absolute = Path(os.path.abspath(state_dir))  # noqa: PTH100 - `resolve` would follow the last component
    return absolute.parent.resolve() / absolute.name


def open_state_dir(path: Path) -> int:
    """Open a lab's state directory and return its file descriptor, after a check that only this user can write it.

    Raises:
        UsageError: another user owns the directory or can write it, or it is a symbolic link or a file.
        OSError: the directory does not exist, or cannot be opened.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a file"
        raise UsageError(f"--dir {path} is {kind}, not a directory; name another --dir")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    reason = ""
    if status.st_uid != os.geteuid():
        reason = f"belongs to user {status.st_uid}, not to user {os.geteuid()}, who runs this command"
    elif _is_writable_by_others(status):
        reason = f"can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    if reason:
        os.close(descriptor)
        raise UsageError(f"--dir {path} {reason}, so that others could control the lab; name another --dir")
    return descriptor


def _is_writable_by_others(status: os.stat_result) -> bool:
    """Whether users other than the owner can write the file or directory with this `stat` result."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def remove_path(path: Path) -> None:
    """Remove a file or a directory tree; ignore errors inside a tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def clear_state_dir(state_dir: Path, *, keep: bool) -> None:
    """Remove a lab's state directory; if `keep` is true, its subdirectory `shared` remains unless it is empty.

    Files are removed only if the directory has the lab's marker, which is removed last.
    """
    marker = state_dir / MARKER
    if marker.is_file() and not marker.is_symlink() and not state_dir.is_symlink():
        for path in list(state_dir.iterdir()):
            if path != marker and (path.name != SHARED or not keep):
                remove_path(path)
        remove_path(marker)
    for path in (state_dir / SHARED, state_dir):
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:  # not empty
            return
