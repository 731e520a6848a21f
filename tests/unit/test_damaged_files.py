"""Readers of damaged files raise an error of hpccoll or return a result, within a second and 200 MB.

The seed of each case is its number; all 10,000 cases: pytest -m 'full or not full' tests/unit/test_damaged_files.py
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hpccoll.errors import HpccollError
from hpccoll.plan import Operation
from hpccoll.plan.interchange.torch_schedules import format_schedule_csv
from hpccoll.predict.machine_catalogue import load_machine
from hpccoll.recordings import read_recording
from hpccoll.report.load import load_results
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder
from hpccoll.schedules import make_schedule
from hpccoll.schedules.schedule_files import prove_schedule_file
from hpccoll.selection import tuning_files
from hpccoll.selection.tuning_files import read_table, write_table
from hpccoll.selection.tuning_table import BufferKind, CandidateTiming, TuningPoint, TuningSeries, TuningTable
from tests.depth import mark_full

ROOT = Path(__file__).parents[2]
LIMIT_S, LIMIT_BYTES = 1.0, 200_000_000
MANY, FEW = 2000, 60  # cases of a kind of file: all, and those in `make test`
HUGE = (
    "1e308",
    "-1",
    "0",
    "99999999999999999999",
    "9" * 5000,
    "NaN",
    "Infinity",
    "1e400",
    "0.5",
    "9223372036854775807",
)
WRONG = ("null", "true", '""', "[]", "{}", '"a"', "[[]]", "-0.0", "x" * 3000, "\x00", "\x1b[31m")


def make_recorder(directory: Path) -> Path:
    recorder = FlightRecorder(str(directory), 0, 4, entries=64)
    calls = CallRecorder(recorder)
    calls.open(1, 0, 4, (0, 1, 2, 3), "world")
    calls.open(2, 0, 2, (0, 2), "half")
    for _ in range(20):
        calls.end(calls.begin("all_reduce", calls.describe("all_reduce", count=5, dtype="float32")))
    path = directory / "recorder"
    shutil.copy(str(recorder.path), path)
    return path


def make_results(directory: Path) -> Path:
    path = directory / "results.jsonl"
    names = ("bench-2", "barrier-4", "preflight-4")
    parts = [(ROOT / f"tests/data/{name}.jsonl").read_text().splitlines(keepends=True)[:12] for name in names]
    path.write_text("".join(line for part in parts for line in part))
    return path


def make_tuning(directory: Path) -> Path:
    points = tuple(
        TuningPoint(2**size, "2026-01-02", (CandidateTiming("ring", 1.0, 1.0, 1.0),)) for size in range(3, 20)
    )
    series = tuple(TuningSeries(operation, 4, BufferKind.HOST, points) for operation in list(Operation)[:3])
    path = directory / "table.json"
    write_table(path, TuningTable(tuning_files.describe_site("MPI 1.0", (4,), oversubscribed=False), series))
    return path


def make_machine(directory: Path) -> Path:
    return Path(shutil.copy(ROOT / "hpccoll/predict/machines/dgx-h100.toml", directory / "machine.toml"))


def make_schedule_file(directory: Path) -> Path:
    path = directory / "schedule.csv"
    path.write_text(format_schedule_csv(make_schedule("1f1b", 4, 8)))
    return path


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "recorder": (make_recorder, read_recording),
    "results": (make_results, lambda path: load_results([path])),
    "tuning": (make_tuning, read_table),
    "machine": (make_machine, lambda path: load_machine(str(path))),
    "schedule": (make_schedule_file, lambda path: prove_schedule_file(str(path))),
}


def flip_bits(rng: random.Random, contents: bytes) -> bytes:
    """Change random bits."""
    changed = bytearray(contents)
    for _ in range(rng.choice((1, 1, 3, 30))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, contents: bytes) -> bytes:
    """Keep only the beginning."""
    return contents[: rng.randrange(len(contents))]


def insert_bytes(rng: random.Random, contents: bytes) -> bytes:
    """Insert bytes at a random place."""
    at, count = rng.randrange(len(contents)), rng.choice((1, 10, 5000))
    return contents[:at] + (rng.randbytes(count) if rng.random() < 0.5 else rng.choice(b"[{(\"',\n\x00")
                            .to_bytes() * count) + contents[at:]  # fmt: skip


def replace_number(rng: random.Random, contents: bytes) -> bytes:
    """Replace a number by a huge one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", contents))
    if not found:
        return contents
    match = rng.choice(found)
    return contents[: match.start()] + rng.choice(HUGE).encode() + contents[match.end() :]


def replace_value(rng: random.Random, contents: bytes) -> bytes:
    """Replace a value by one of another type."""
    found = list(re.finditer(rb'"[^"\n]*"|\d+|\[[^\[\]\n]*\]|[A-Za-z]+', contents))
    if not found:
        return contents
    match = rng.choice(found)
    return contents[: match.start()] + rng.choice(WRONG).encode() + contents[match.end() :]


def nest(rng: random.Random, contents: bytes) -> bytes:
    """Insert deeply nested brackets."""
    depth, at = rng.choice((100, 2000, 200_000)), rng.randrange(len(contents))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return contents[:at] + opening * depth + b"1" + closing * (depth if rng.random() < 0.5 else 0) + contents[at:]


def duplicate_lines(rng: random.Random, contents: bytes) -> bytes:
    """Repeat a line."""
    lines = contents.split(b"\n")
    at = rng.randrange(len(lines))
    return b"\n".join([*lines[:at], *[lines[at]] * rng.choice((2, 20)), *lines[at + 1 :]])


def overwrite_words(rng: random.Random, contents: bytes) -> bytes:
    """Overwrite eight bytes by extreme values."""
    changed, at = bytearray(contents), rng.randrange(0, max(len(contents) - 8, 1), 4)
    changed[at : at + 8] = rng.choice((b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", rng.randbytes(8)))
    return bytes(changed)


MUTATIONS = (flip_bits, truncate, insert_bytes, replace_number, replace_value, nest, duplicate_lines, overwrite_words)


def damage(rng: random.Random, contents: bytes, path: Path) -> None:
    """Write damaged contents; one file in fifty is extended to a size that does not fit into memory."""
    for _ in range(rng.choice((1, 1, 2))):
        contents = rng.choice(MUTATIONS)(rng, contents) or b"\n"
    path.write_bytes(contents)
    if rng.random() < 0.02:
        os.truncate(path, rng.choice((2**30, 2**40)))


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let allocations of more than LIMIT_BYTES together fail with MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_within_limits(read: Callable[[], object], name: str) -> str:
    """Call a reader; return a description of a failure, or an empty string."""
    began = time.process_time()
    try:
        with limited_memory():
            read()
    except HpccollError as error:
        if not str(error):
            return f"{name}: an error without a message"
    except BaseException as error:  # noqa: BLE001 - every other exception is a failure
        return f"{name}: {type(error).__name__}: {str(error)[:300]}"
    taken = time.process_time() - began
    return f"{name}: {taken:.1f} s" if taken > LIMIT_S else ""


@pytest.mark.parametrize("count", [FEW, mark_full(MANY)])
@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_is_refused_or_read(kind, count, tmp_path):
    make, read = READERS[kind]
    contents = make(tmp_path).read_bytes()
    path = make(tmp_path)
    read(path)
    failures = []
    for seed in range(count):
        damage(random.Random(seed), contents, path)
        failures.append(read_within_limits(lambda: read(path), f"{kind} {seed}"))
    assert not any(failures), "\n".join(filter(None, failures))


@pytest.mark.parametrize("count", [FEW // 2, mark_full(MANY)])
def test_a_damaged_checkpoint_is_refused_or_read(count, tmp_path):
    torch = pytest.importorskip("torch")
    from hpccoll.train.checkpoint import Checkpoint, CheckpointDirectory

    folder = CheckpointDirectory(tmp_path)
    tensors = {"layers.0.weight": torch.from_numpy(np.arange(15.0)), "bias": torch.ones(3)}
    directory = folder.save(Checkpoint(7, 448, {"model": "mlp"}, tensors))
    whole = {path: path.read_bytes() for path in directory.iterdir()}
    folder.load_newest({"model": "mlp"})  # imports what reading needs
    failures = []

    def load() -> None:
        found, _ = folder.load_newest({"model": "mlp"})
        assert found is not None
        assert torch.equal(found.parameters["bias"], tensors["bias"])

    for seed in range(count):
        rng = random.Random(seed)
        path = rng.choice(list(whole))
        damage(rng, whole[path], path)
        failures.append(read_within_limits(load, f"checkpoint {seed} {path.name}"))
        path.write_bytes(whole[path])
    assert not any(failures), "\n".join(filter(None, failures))
