"""A file is replaced as a whole, and a lock is held by one process at a time."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hpccoll.atomic_files import lock_beside, unlock, wait_for_lock, write_atomically


def test_readers_see_the_old_or_the_new_contents(tmp_path):
    path, seen, done = tmp_path / "file", set(), threading.Event()
    texts = [letter * 300_000 for letter in "ab"]
    write_atomically(path, texts[0])

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        write_atomically(path, texts[number % 2])
    done.set()
    reader.join()
    assert seen <= set(texts)


def test_a_failed_write_keeps_the_old_contents_and_leaves_no_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with suppress(OSError):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_links_and_modes_stay(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_atomically(link, "new")
    assert (link.is_symlink(), path.read_text(), path.stat().st_mode & 0o777) == (True, "new", 0o640)


def test_a_device_is_written_in_place():
    write_atomically("/dev/null", "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.timeout(30)
def test_a_lock_is_held_once_and_a_holder_that_is_stuck_keeps_nobody_for_ever(tmp_path):
    path = tmp_path / "file"
    descriptors = [os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2)]
    assert wait_for_lock(descriptors[0], 0)
    assert not wait_for_lock(descriptors[1], 0.05)
    unlock(descriptors[0])
    assert wait_for_lock(descriptors[1], 0)
    for descriptor in descriptors:
        os.close(descriptor)
    with lock_beside(path, 5):
        began = time.monotonic()
        with lock_beside(path, 0.05):
            assert time.monotonic() - began >= 0.05
