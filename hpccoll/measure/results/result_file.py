"""Reads and writes result files (JSON Lines) record by record, so that a killed run loses no finished record.

Each record is one line, flushed before the next case is measured. A run that is killed while it writes a record leaves
an incomplete last line, which writers that resume the file remove. Two jobs may append to one file, such as a requeued
job and its first run, which SLURM wrongly believes lost. A lock keeps the lines of two jobs apart. Readers skip and
report damaged lines. A file that hpccoll did not write raises UsageError and stays unchanged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from hpccoll.atomic_files import unlock, wait_for_lock
from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import read_collective_record
from hpccoll.measure.results.output_file import explain_write_errors
from hpccoll.private_files import read_limited
from hpccoll.records import SCHEMA, CollectiveRecord, RunRecord

STDOUT = "-"
MOST_BYTES = 2**28  # largest size of a result file; a record takes about a kilobyte
LOCK_LIMIT_S = 5.0  # longest wait for the lock, which a stopped process may hold
MAX_NAMED = 5  # damaged lines
COMPACT, SPACED = (",", ":"), (", ", ": ")
_START = f'{{"schema":"{SCHEMA.partition("/")[0]}/'.encode()


@dataclass(frozen=True, slots=True)
class FileContents:
    """The records of a result file, as decoded JSON objects with their line numbers, and a note on damaged lines."""

    name: str  # the command-line option and the path, for error messages
    records: tuple[dict[str, Any], ...]  # one dict per line
    lines: tuple[int, ...]  # the line number of each record, from 1
    torn: str | None  # a sentence that describes damaged lines, which are left out; None if there are none
    intact: int  # the number of bytes before an incomplete last line

    def locate(self, index: int) -> str:
        """Return text for error messages that names the file and the line of `records[index]`."""
        return f"{self.name}, line {self.lines[index]}"

    def keep_comparable(self, run: Mapping[str, Any]) -> Self:
        """Return a copy with only the records of runs that the new run may continue.

        These runs have the same hosts, devices, versions, and numbers of ranks and nodes as the new run, whose record
        of kind `run` is `run`. The hosts may differ if both runs belong to one SLURM job, which was requeued.
        """
        kept, comparable = [], True
        for index, record in enumerate(self.records):
            if record["kind"] == RunRecord.kind:
                comparable = _is_comparable(record, run)
            if comparable:
                kept.append(index)
        return replace(self, records=tuple(self.records[at] for at in kept), lines=tuple(self.lines[at] for at in kept))

    def collectives(self) -> list[CollectiveRecord]:
        """Return each benchmark case's last record of kind `collective`; raise UsageError if a record is invalid."""
        records = (
            read_collective_record(record, self.locate(index))
            for index, record in enumerate(self.records)
            if record["kind"] == CollectiveRecord.kind
        )
        return list({record.key: record for record in records}.values())


def read_records(path: str | Path, option: str = "--resume") -> FileContents:
    """Read and return the contents of a result file; damaged lines are left out and described in `torn`.

    Error messages name the command-line option `option`.

    Raises:
        UsageError: the file cannot be read, or was not written by hpccoll.
    """
    name = f"{option} {path}"
    try:
        data = read_limited(path, MOST_BYTES)
    except OSError as error:
        reason = f"cannot read it ({error.strerror or error})"
        raise UsageError(f"{name}: {reason}; name a file that hpccoll wrote with --json") from error
    end = len(data.rstrip())
    last = data.rfind(b"\n", 0, end) + 1  # the start of the last line that is not blank
    lines = {number: line for number, line in enumerate(data[:end].split(b"\n"), 1) if line.strip()}
    problems, intact = [], len(data)
    if end > last and not _is_json(data[last:end]):
        if len(lines) == 1 and not _starts_like_record(data[last:end]):
            raise _foreign_error(name)
        lines.popitem()
        problems, intact = [f"the last line is cut short after {end - last} bytes"], last
    damaged = [number for number, line in lines.items() if not _is_json(line)]
    if damaged and len(damaged) == len(lines):
        raise _damage_error(lines[damaged[0]], f"{name}, line {damaged[0]}")
    if damaged:
        more = ", ..." if len(damaged) > MAX_NAMED else ""
        problems.insert(0, f"damaged: line {', '.join(map(str, damaged[:MAX_NAMED]))}{more}")
    torn = f"{path}: {'; '.join(problems)}; left out" if problems else None
    whole = {number: line for number, line in lines.items() if number not in set(damaged)}
    records = tuple(_decode_record(line, f"{name}, line {number}") for number, line in whole.items())
    return FileContents(name, records, tuple(whole), torn, intact)


def find_result_files(path: Path) -> list[Path]:
    """Return `[path]` for a file, or all `.jsonl` files below the directory `path`; UsageError if there are none."""
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
                _append_line(self._stream, line.encode())

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
    """Open a result file for appending, after emptying it or, with `resume`, removing an incomplete last line.

    Errors name the command-line option `option`.
    """
    with explain_write_errors(path, option):
        if path.exists() and not path.is_file():  # such as /dev/stderr or a FIFO
            return path.open("wb", buffering=0)
        stream = path.open("a+b", buffering=0)
        try:
            wait_for_lock(stream.fileno(), LOCK_LIMIT_S)
            stream.truncate(read_records(path, option).intact if resume else 0)
        except BaseException:
            stream.close()
            raise
        unlock(stream.fileno())
        return stream


def _append_line(stream: BinaryIO, line: bytes) -> None:
    """Append a line to a file that other processes may append to; if the last line is incomplete, end it first."""
    descriptor = stream.fileno()
    is_file = stream.readable()
    if is_file:
        wait_for_lock(descriptor, LOCK_LIMIT_S)
    try:
        nbytes = os.fstat(descriptor).st_size if is_file else 0
        begin = b"\n" if nbytes and os.pread(descriptor, 1, nbytes - 1) != b"\n" else b""
        rest = begin + line
        while rest:  # on a full disk, `write` may write only a part
            rest = rest[os.write(descriptor, rest) :]
    finally:
        if is_file:
            unlock(descriptor)


def _damage_error(line: bytes, location: str) -> UsageError:
    """Return the error for a file whose lines are all damaged; `line` is the first, at `location`."""
    if _starts_like_record(line):
        return UsageError(f"{location} is damaged, as are all other lines; name another file")
    return _foreign_error(location)


def _decode_record(line: bytes, location: str) -> dict[str, Any]:
    """Return the JSON object in a line of a result file; raise UsageError unless hpccoll has written the line.

    `location` is the file and the line number, for the error.
    """
    record = msgspec.json.decode(line)
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA or not isinstance(record.get("kind"), str):
        raise _foreign_error(location, schema)
    return dict(record)


def _is_comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs, given by their records of kind `run`, have equal hosts, ranks, devices and versions."""
    if any(one.get(name) != other.get(name) for name in ("versions", "ranks", "nodes")):
        return False
    if list(one.get("devices", ())) != list(other.get("devices", ())):  # a tuple in a new record, a list in a file's
        return False
    jobs = [(run.get("slurm") or {}).get("job_id") for run in (one, other)]
    return sorted(one.get("hosts", ())) == sorted(other.get("hosts", ())) or (jobs[0] == jobs[1] and bool(jobs[0]))


def _is_json(line: bytes) -> bool:
    """Whether a line is valid JSON."""
    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _starts_like_record(line: bytes) -> bool:
    """Whether a damaged line may be a record cut short: it begins as every record of hpccoll begins."""
    start = line[: 2 * len(_START)].replace(b" ", b"")[: len(_START)]
    return _START.startswith(start) and bool(start)


def _foreign_error(location: str, schema: object = None) -> UsageError:
    """Return the error for a line that hpccoll did not write, or wrote with another version of the schema.

    `location` is the file and the line number, and `schema` the schema version of the line.
    """
    seen = f"schema {schema!r} instead of {SCHEMA!r}" if schema else f"not a record of schema {SCHEMA!r}"
    return UsageError(f"{location}: {seen}; name a file that hpccoll wrote with --json")
