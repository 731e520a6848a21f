"""The removal of shared-memory files after a test session does not disturb other sessions."""

from __future__ import annotations

import threading

from tests.leftovers import keep_unused_files, remove_unused_files


def test_files_that_a_test_needs_are_removed_after_it(tmp_path):
    needed = tmp_path / "mpich_shm_1_0"
    needed.touch()
    (tmp_path / "other").touch()
    other_session = threading.Thread(target=remove_unused_files, args=(3600.0, tmp_path))
    with keep_unused_files(tmp_path):
        other_session.start()
        other_session.join(0.5)
        assert needed.exists()
    other_session.join()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
