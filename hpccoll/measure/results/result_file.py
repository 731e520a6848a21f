"""Reads and writes result files (JSON Lines) record by record, so that a killed run loses no finished record.

Each record is one line, flushed before the next case is measured. A run that is killed while it writes a record leaves
an incomplete last line. Readers skip and report an incomplete last line, and writers that resume a file remove such a
line. Any other damaged line, or a file that hpccoll did not write, raises UsageError and leaves the file unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import read_collective_record
from hpccoll.measure.results.output_file import explain_write_errors
from hpccoll.records import SCHEMA, CollectiveRecord

STDOUT = "-"
COMPACT, SPACED = (",", ":"), (", ", ": ")
_START = f'{{"schema":"{SCHEMA.partition("/")[0]}/'.encode()


@dataclass(frozen=True, slots=True)
class FileContents:
    """The records of a result file, as decoded lines."""

    name: str  # the command-line option and the path, for error messages
    records: tuple[dict[str, Any], ...]  # one dict per line
    lines: tuple[int, ...]  # the line number of each record, from 1
    torn: str | None  # a sentence that describes an incomplete last line; None if the last line is complete
    intact: int  # the number of bytes before an incomplete last line

    def locate(self, index: int) -> str:
        """Return the file and the line number of `records[index]`, for error messages."""
        return f"{self.name}, line {self.lines[index]}"

    def collectives(self) -> list[CollectiveRecord]:
        """Return each benchmark case's last record of kind `collective`; raise UsageError if a record is invalid."""
        found = (
            read_collective_record(record, self.locate(index))
            for index, record in enumerate(self.records)
            if record["kind"] == CollectiveRecord.kind
        )
        return list({record.key: record for record in found}.values())


def read_records(path: str | Path, option: str = "--resume") -> FileContents:
    """Read a result file; an incomplete last line is left out and described in `torn`. Error messages name `option`.

    Raises:
        UsageError: the file cannot be read, was not written by hpccoll, or is damaged before its last line.
    """
    name = f"{option} {path}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = f"cannot read it ({error.strerror or error})"
        raise UsageError(f"{name}: {reason}; name a file that hpccoll wrote with --json") from error
    end = len(data.rstrip())
    last = data.rfind(b"\n", 0, end) + 1  # the start of the last line that is not blank
    lines = {number: line for number, line in enumerate(data[:end].split(b"\n"), 1) if line.strip()}
    torn, intact = None, len(data)
    if end > last and not _is_json(data[last:end]):
        if len(lines) == 1 and not _starts_like_record(data[last:end]):
            raise _foreign_error(name)
        lines.popitem()
        torn, intact = f"{path}: the last line is cut short after {end - last} bytes and left out", last
    records = tuple(_decode_record(line, f"{name}, line {number}") for number, line in lines.items())
    return FileContents(name, records, tuple(lines), torn, intact)


def find_result_files(path: Path) -> list[Path]:
    """Return a file itself, or all `.jsonl` files below a directory; raise UsageError if it has none; read no file."""
    files = sorted(file for file in path.rglob("*.jsonl") if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"FILE {path}: no *.jsonl in this directory; name files that hpccoll wrote with --json")
    return files


class RecordWriter:
    """Writes records to a file or standard output and flushes each; the constructor truncates or resumes the file.

    Args:
        path: the file; `-` for standard output, None to write nothing.
        option: the command-line option that named the file, for error messages.
        resume: append after the last complete record of an existing file, instead of truncating it.
        separators: separators between items, and between key and value, as for `json.dumps`.

    Raises:
        UsageError: the file cannot be written, or cannot be resumed because hpccoll did not write it.
    """

    def __init__(
        self,
        path: str | Path | None,
        option: str = "--json",
        *,
        resume: bool = False,
        separators: tuple[str, str] = COMPACT,
    ) -> None:
        self._name, self._option, self._separators = path, option, separators
        self._stream: BinaryIO | None = None
        if path is not None and str(path) != STDOUT:
            self._stream = _open_file(Path(path), option, resume)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record and flush it; raise UsageError if the file cannot be written, as on a full disk."""
        if self._name is None:
            return
        line = json.dumps(record, separators=self._separators, allow_nan=False) + "\n"
        with explain_write_errors(self._name, self._option):
            if self._stream is None:
                sys.stdout.write(line)
                sys.stdout.flush()
            else:
                self._stream.write(line.encode())
                self._stream.flush()

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._stream is not None:
            with suppress(OSError):  # `write` flushes, and has reported a full disk
                self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_file(path: Path, option: str, resume: bool) -> BinaryIO:
    """Open a file for writing: truncate it, or, to resume, remove only an incomplete last line and seek to the end."""
    with explain_write_errors(path, option):
        if not (resume and path.exists()):
            return path.open("wb")
        intact = read_records(path, option).intact
        stream = path.open("r+b")
        stream.truncate(intact)
        stream.seek(max(intact - 1, 0))
        if stream.read(1) not in (b"", b"\n"):
            stream.write(b"\n")
        return stream


def _decode_record(line: bytes, location: str) -> dict[str, Any]:
    """Decode a line of a result file; raise UsageError unless it has hpccoll's `schema` and a `kind`."""
    try:
        record = msgspec.json.decode(line)
    except ValueError as error:
        if _starts_like_record(line):
            advice = "correct or remove the line, or name another file"
            raise UsageError(f"{location} is damaged ({error}); {advice}") from error
        raise _foreign_error(location) from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA or not isinstance(record.get("kind"), str):
        raise _foreign_error(location, schema)
    return dict(record)


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except ValueError:
        return False
    return True


def _starts_like_record(line: bytes) -> bool:
    """Whether a damaged line may be a record cut short: it begins as every record of hpccoll begins."""
    start = line[: 2 * len(_START)].replace(b" ", b"")[: len(_START)]
    return _START.startswith(start) and bool(start)


def _foreign_error(location: str, schema: object = None) -> UsageError:
    """Return the error for a line that hpccoll did not write, or wrote with another version of the schema."""
    seen = f"schema {schema!r} instead of {SCHEMA!r}" if schema else f"not a record of schema {SCHEMA!r}"
    return UsageError(f"{location}: {seen}; name a file that hpccoll wrote with --json")
