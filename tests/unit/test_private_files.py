"""Files of other users, FIFOs, links and huge files are refused at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpccoll.printable import escape_unprintable
from hpccoll.private_files import is_open_to_others, open_private, read_private, read_regular

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


def make_file(path: Path, mode: int = 0o600) -> str:
    """Write a file with a mode, and return its path."""
    path.write_bytes(b"contents")
    path.chmod(mode)
    return str(path)


def test_a_file_of_this_user_is_read(tmp_path):
    assert read_private(make_file(tmp_path / "file"), 8) == b"contents"
    assert read_regular(make_file(tmp_path / "other", 0o644), 8) == b"contents"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path, mode):
    path = make_file(tmp_path / "file", mode)
    with pytest.raises(PermissionError, match=f"other users can write it.*mode {mode:o}"):
        open_private(path)
    assert read_regular(path, 100) == b"contents"


@as_root
def test_a_file_of_another_user_is_refused(tmp_path):
    path = make_file(tmp_path / "file")
    os.chown(path, OTHER, OTHER)
    with pytest.raises(PermissionError, match=f"it belongs to user {OTHER}, not to user 0"):
        open_private(path)


def test_a_link_is_refused_although_its_target_is_not(tmp_path):
    (tmp_path / "link").symlink_to(make_file(tmp_path / "file"))
    with pytest.raises(OSError, match="symbolic link") as caught:
        open_private(str(tmp_path / "link"))
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("read", [read_private, read_regular])
@pytest.mark.timeout(10)
def test_a_fifo_does_not_block(tmp_path, read):
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(OSError, match="no regular file"):
        read(str(tmp_path / "fifo"), 100)


@pytest.mark.parametrize("read", [read_private, read_regular])
def test_a_file_that_is_too_large_is_not_read(tmp_path, read):
    os.truncate(make_file(tmp_path / "sparse"), 2**40)
    with pytest.raises(OSError, match="1099511627776 bytes, more than 100"):
        read(str(tmp_path / "sparse"), 100)


def test_a_directory_open_to_others_is_recognised(tmp_path):
    tmp_path.chmod(0o1777)
    assert is_open_to_others(tmp_path)
    tmp_path.chmod(0o775)
    assert not is_open_to_others(tmp_path)


def test_terminal_commands_are_escaped():
    assert escape_unprintable("plain, ö") == "plain, ö"
    assert escape_unprintable("\x1b[2Jx\n\u202e\udc80") == r"\x1b[2Jx\n\u202e\udc80"
