"""A lab uses only a directory of its user, talks only to a supervisor of its user, and deletes only a lab's files."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpccoll.cli.lab import lab
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.lab import ClusterSpec, launch
from hpccoll.lab.client import connect_lab
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.state_dir import MARKER, get_default_dir, open_state_dir

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path of a directory, which a lab needs."""
    with tempfile.TemporaryDirectory(prefix="hpccoll-test-") as directory:
        yield Path(directory)


def start(state_dir: Path) -> None:
    """Start a lab as far as its state directory is refused."""
    launch.launch_lab(ClusterSpec(), state_dir, Isolation.FLAT, "", None, keep=True)


def test_a_link_is_refused_and_its_target_keeps_its_files(folder):
    target = folder / "target"
    target.mkdir()
    for name in ("slurm.conf", "state"):  # as a lab of another version has left them
        (target / name).touch()
    (folder / "link").symlink_to(target)
    for use in (start, connect_lab):
        with pytest.raises(UsageError, match="is a symbolic link, not a directory"):
            use(folder / "link")
    assert sorted(path.name for path in target.iterdir()) == ["slurm.conf", "state"]


@as_root
def test_a_directory_of_another_user_is_refused_and_keeps_its_files(folder):
    (folder / "slurm.conf").touch()
    (folder / MARKER).touch()
    os.chown(folder, OTHER, OTHER)
    for use in (start, connect_lab):
        with pytest.raises(UsageError, match=f"belongs to user {OTHER}, not to user 0"):
            use(folder)
    assert (folder / "slurm.conf").exists()
    said = CliRunner().invoke(lab, ["run", "--dir", str(folder), "--", "true"])
    assert said.exit_code != 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(UsageError, match="can be written by other users"):
        start(folder)


def test_files_without_the_marker_of_a_lab_are_kept(folder):
    (folder / "slurm.conf").touch()
    with pytest.raises(UsageError, match=r"holds slurm\.conf and is not a lab's"):
        start(folder)
    assert (folder / "slurm.conf").exists()


@as_root
def test_a_supervisor_of_another_user_is_refused(folder):
    """A child that runs as another user answers on the socket of the lab."""
    listener = socket.socket(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        os.chown(folder, OTHER, OTHER)
        os.setuid(OTHER)
        listener.bind(str(folder / "control"))
        listener.listen()
        connection = listener.accept()[0]
        connection.recv(1)
        os._exit(0)
    listener.close()
    try:
        while not (folder / "control").exists():
            threading.Event().wait(0.01)
        os.chown(folder, 0, 0)
        with pytest.raises(UsageError, match=f"belongs to user {OTHER}, not to user 0"):
            connect_lab(folder)
    finally:
        os.waitpid(child, 0)


def test_no_lab_runs_in_a_missing_directory(folder):
    with pytest.raises(UnavailableError, match="no lab runs"):
        connect_lab(folder / "none")


def test_the_default_directory_is_one_that_only_this_user_can_write(folder):
    fallback = Path(tempfile.gettempdir()) / f"hpccoll-lab-{os.geteuid()}"
    assert get_default_dir({"XDG_RUNTIME_DIR": str(folder)}) == folder / "hpccoll-lab"
    folder.chmod(0o777)
    assert get_default_dir({"XDG_RUNTIME_DIR": str(folder)}) == fallback
    assert get_default_dir({"XDG_RUNTIME_DIR": "relative"}) == fallback
    assert get_default_dir({}) == fallback
    folder.chmod(0o700)
    os.close(open_state_dir(folder))
