"""The result file: JSON Lines, written record by record so that a run that is killed leaves what it finished.

Each record is one line, handed to the system before the next row is measured. A kill in the middle of a line leaves a
torn last one; the reader leaves it out and says so, and resuming cuts it off before the next record is appended.
A damaged line anywhere else, or a file of another kind, is refused: results are not appended to someone's thesis.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from hpccoll.errors import UsageError
from hpccoll.measure.output_file import unwritable
from hpccoll.measure.record import SCHEMA, CaseKey, CollectiveRecord

STDOUT = "-"
_START = b'{"schema":"hpccoll/'


@dataclass(frozen=True, slots=True)
class FileContents:
    """What a result file holds.

    `torn` says what is wrong with the last line, where it was cut short; `intact` is how many bytes come before it.
    """

    records: tuple[dict[str, Any], ...]
    torn: str | None
    intact: int

    def collectives(self) -> list[CollectiveRecord]:
        """Return the measurements; one that was measured twice counts as it was last."""
        found = (CollectiveRecord.from_dict(record) for record in self.records if record["kind"] == "collective")
        return list({record.row.key: record for record in found}.values())


def read_records(path: str | Path, option: str = "--resume") -> FileContents:
    """Return the records of a result file; a torn last line is left out and reported in `torn`.

    Raises:
        UsageError: the file cannot be read, is not one of hpccoll's, or is damaged before its last line.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        why = f"cannot read it ({error.strerror or error})"
        raise UsageError(f"{option} {path}: {why}; name a file that hpccoll wrote with --json") from error
    end = len(data.rstrip())
    last = data.rfind(b"\n", 0, end) + 1  # the last line that is not blank begins here
    lines = [(number, line) for number, line in enumerate(data[:last].split(b"\n"), 1) if line.strip()]
    records = [_record(line, f"{option} {path}, line {number}") for number, line in lines]
    if _is_json(data[last:end]):
        number = data.count(b"\n", 0, last) + 1
        records.append(_record(data[last:end], f"{option} {path}, line {number}"))
        return FileContents(tuple(records), None, len(data))
    if end == last:
        return FileContents(tuple(records), None, len(data))
    if not records and not _may_be_ours(data[last:end]):
        raise _foreign(f"{option} {path}")
    torn = f"{path}: the last line is cut short after {end - last} bytes and left out; its row is measured again"
    return FileContents(tuple(records), torn, last)


def finished_keys(path: str | Path, option: str = "--resume") -> set[CaseKey]:
    """Return the rows that a result file already has, whatever command and run they come from.

    A file that does not exist yet has none, so that a job that may be requeued can always ask to resume.

    Raises:
        UsageError: as `read`.
    """
    if not Path(path).exists():
        return set()
    return {record.row.key for record in read_records(path, option).collectives()}


class RecordWriter:
    """Writes records, each readable by others as soon as `write` returns.

    Args:
        path: the file; `-` for standard output.
        option: the option that named it, for messages.
        resume: go on after the last whole record of a file that is there, instead of beginning it anew.

    Raises:
        UsageError: the file cannot be written, or is to be resumed and is not one of hpccoll's.
    """

    def __init__(self, path: str | Path, option: str = "--json", *, resume: bool = False) -> None:
        self._name, self._option = path, option
        self._stream: BinaryIO | None = None
        if str(path) != STDOUT:
            self._stream = _opened(Path(path), option, resume)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record and hand it to the system.

        Raises:
            UsageError: there is no room for it any more, or the file has become unwritable.
        """
        line = json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
        if self._stream is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            self._stream.write(line.encode())
            self._stream.flush()
        except OSError as error:
            raise unwritable(self._name, self._option, error) from error

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._stream is not None:
            with suppress(OSError):  # what a full disk did not take was reported by `write`
                self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(path: Path, option: str, resume: bool) -> BinaryIO:
    try:
        if not (resume and path.exists()):
            return path.open("wb")
        intact = read_records(path, option).intact
        stream = path.open("r+b")
        stream.truncate(intact)
        stream.seek(max(intact - 1, 0))
        if stream.read(1) not in (b"", b"\n"):
            stream.write(b"\n")
    except OSError as error:
        raise unwritable(path, option, error) from error
    return stream


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        if _may_be_ours(line):
            raise UsageError(f"{where} is damaged ({error}); mend or remove the line, or name another file") from error
        raise _foreign(where) from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA or not isinstance(found.get("kind"), str):
        raise _foreign(where, f"schema {schema!r}, but" if schema else "no record;")
    return dict(found)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _may_be_ours(line: bytes) -> bool:
    """Whether a damaged line begins as records do, as far as it goes."""
    start = line[: 2 * len(_START)].replace(b" ", b"")[: len(_START)]
    return _START.startswith(start) and bool(start)


def _foreign(where: str, found: str = "no record;") -> UsageError:
    return UsageError(f"{where}: {found} this reads and continues files of schema {SCHEMA}, written by --json")
