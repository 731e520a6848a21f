"""Recorder files with impossible contents are refused with an error of hpccoll, within little time and memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from hpccoll.errors import RecordingError
from hpccoll.recordings import layout, read_recording, read_recordings
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    recorder = FlightRecorder(str(tmp_path), 0, 2, entries=8)
    calls = CallRecorder(recorder)
    calls.open(1, 0, 2, (0, 1), "world")
    calls.end(calls.begin("barrier", calls.describe("barrier")))
    assert recorder.path is not None
    return Path(recorder.path)


def with_tables(path: Path, text: str) -> None:
    """Replace the tables of a recorder file by a text with a correct checksum."""
    contents, encoded = bytearray(path.read_bytes()), text.encode()
    header = layout.TABLE.pack(99, len(encoded), crc32(encoded)) + encoded
    contents[layout.HEADER_BYTES : layout.HEADER_BYTES + len(header)] = header
    path.write_bytes(contents)


def with_bytes(path: Path, at: int, values: bytes) -> None:
    """Overwrite bytes of a file."""
    contents = bytearray(path.read_bytes())
    contents[at : at + len(values)] = values
    path.write_bytes(contents)


ENTRY_1 = layout.HEADER_BYTES + 2 * layout.TABLE_BYTES + layout.ENTRY_BYTES
DAMAGES: dict[str, Callable[[Path], None]] = {
    "more members than memory": lambda path: with_tables(path, "open\t1\t0\t2\tx\t0-99999999999:1"),
    "members without end": lambda path: with_tables(path, f"open\t1\t0\t{10**11}\tx\t0-{10**11 - 1}:1"),
    "a stride of zero": lambda path: with_tables(path, "open\t1\t0\t2\tx\t0-1:0"),
    "ranks that are words": lambda path: with_tables(path, "open\t1\t0\t2\tx\ta-b:1"),
    "a negative rank": lambda path: with_tables(path, "open\t1\t0\t1\tx\t-1-0:1"),
    "many large communicators": lambda path: with_tables(
        path, "\n".join(f"open\t{n}\t0\t{2**20 + n}\tx\t0-{2**20 + n - 1}:1" for n in range(900))
    ),
    "a code that is a word": lambda path: with_tables(path, "name\tcode\tname"),
    "an unknown kind of call": lambda path: with_bytes(path, ENTRY_1 + 24 + 40 - 8, b"\xff"),
    "four thousand million ranks": lambda path: with_bytes(path, 32, b"\xff\xff\xff\xff"),
    "a rank beyond the size": lambda path: with_bytes(path, 28, b"\x02"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_impossible_contents_are_refused(path, damage):
    DAMAGES[damage](path)
    tracemalloc.start()
    with pytest.raises(RecordingError, match="is damaged"):
        read_recording(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6


def test_a_clock_with_another_checksum_is_left_out(path):
    values = struct.pack("<5d", 1, 2, 3, 4, 5)
    with_bytes(path, layout.CLOCK_AT, values + struct.pack("<I", crc32(values)))
    assert read_recording(path).clock == (1, 2, 3, 4, 5)
    with_bytes(path, layout.CLOCK_AT, values + struct.pack("<I", crc32(values) ^ 1))
    assert read_recording(path).clock is None


def test_a_clock_that_is_no_number_is_left_out(path):
    values = struct.pack("<5d", float("nan"), 0, 0, 0, 0)
    with_bytes(path, layout.CLOCK_AT, values + struct.pack("<I", crc32(values)))
    assert read_recording(path).clock is None


def test_terminal_commands_are_escaped(path):
    with_tables(path, "name\t1\tbar\x1b[31mrier\nopen\t1\t0\t2\t\x1b]0;x\x07\t0-1:1")
    recording = read_recording(path)
    assert recording.communicators[1].name == r"\x1b]0;x\x07"
    assert recording.calls[0].operation == r"bar\x1b[31mrier"


@pytest.mark.timeout(20)
def test_fifos_links_and_huge_files_do_not_hide_a_recording(path, tmp_path):
    os.mkfifo(tmp_path / f"{layout.FILE_PREFIX}rank1-1-fifo")
    (tmp_path / f"{layout.FILE_PREFIX}rank2-1-link").symlink_to("/dev/zero")
    (tmp_path / f"{layout.FILE_PREFIX}rank3-1-huge").touch()
    os.truncate(tmp_path / f"{layout.FILE_PREFIX}rank3-1-huge", 2**40)
    found = read_recordings(tmp_path)
    assert [each.rank for each in found.recordings] == [0]
    assert len(found.problems) == 3


def test_the_recordings_of_another_job_do_not_stand_in_for_those_of_a_given_job(path, tmp_path):
    assert read_recordings(tmp_path, 1).recordings
    with pytest.raises(RecordingError, match="no recorder file of this job"):
        read_recordings(tmp_path, 7)


@as_root
def test_recordings_of_another_user_are_read_only_where_nobody_else_can_make_files(path, tmp_path):
    os.chown(path, OTHER, OTHER)
    tmp_path.chmod(0o755)
    assert read_recordings(tmp_path).recordings
    with pytest.raises(RecordingError, match="it belongs to user"):
        read_recordings(tmp_path, 1)
    tmp_path.chmod(0o1777)
    with pytest.raises(RecordingError, match="it belongs to user"):
        read_recordings(tmp_path)


def test_the_path_stays_valid_in_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = FlightRecorder("recordings", 0, 1, entries=8)
    monkeypatch.chdir("/")
    assert recorder.path is not None
    assert read_recording(recorder.path).rank == 0
