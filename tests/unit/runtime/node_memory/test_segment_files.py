"""Segments of shared memory on one rank: their files, and the memory that they need."""

from __future__ import annotations

import pytest

from hpccoll.errors import UnavailableError
from hpccoll.runtime.node_memory import segment


def test_a_link_in_place_of_a_segment_is_not_followed(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(bytes(4096))
    link.symlink_to(target)
    status = target.stat()
    assert len(segment._map(4096, None, (str(target), status.st_dev, status.st_ino), None)) == 4096
    with pytest.raises(OSError, match="symbolic links"):
        segment._map(4096, None, (str(link), status.st_dev, status.st_ino), None)


def test_the_limit_of_a_control_group_is_an_error_before_any_memory_is_taken(monkeypatch):
    monkeypatch.setattr("hpccoll.processes.free_memory.find_free_bytes", lambda: 1000)
    with pytest.raises(UnavailableError, match="has 1000 B left"):
        segment._create_memfd(2**20, reserve=True)
