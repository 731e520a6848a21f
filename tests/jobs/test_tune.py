"""`mpirun -n N hpccoll tune` in real jobs: stored and merged tables, their readers, refused options, and crashes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpccoll.algorithms import list_algorithm_names
from hpccoll.plan import Operation
from hpccoll.selection import tuning_files
from hpccoll.selection.tuning_table import MeasuredWinner, TuningTable
from tests.depth import keep_every
from tests.jobs.launch import BIN, LIMIT_S, command, environment, hpccoll
from tests.record_schema import require_valid

QUICK = ("-b", "8", "-e", "512", "-f", "64", "--budget", "0.001")

WHO_READS = """
from mpi4py import MPI
from hpccoll import Communicator
with Communicator() as comm:
    table = comm._engine.selector._table
found = None if table is None else [point.timings[0].name for each in table.series for point in each.points]
for line in MPI.COMM_WORLD.gather(str(found)) or []:
    print(line)
"""

WHO_RUNS = """
import numpy as np
from hpccoll import Communicator
with Communicator() as comm:
    for _ in range(3):
        assert (comm.all_reduce(np.ones(2, np.float32)) == comm.size).all()
"""


def python(ranks: int, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program on `ranks` ranks."""
    words = [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment(**more))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a result file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def candidates(table: TuningTable) -> dict[tuple[str, str, int], set[str]]:
    """Return the measured candidates by operation, buffer and size."""
    return {
        (each.operation.value, str(each.buffer), point.nbytes): {timing.name for timing in point.timings}
        for each in table.series
        for point in each.points
    }


def winners(table: TuningTable) -> list[MeasuredWinner]:
    """The winner of every operation, buffer and size."""
    found = [
        each.find_winner(point.nbytes, {timing.name for timing in point.timings})
        for each in table.series
        for point in each.points
    ]
    return [winner for winner in found if winner is not None]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a quick run on two ranks: t.json and t.jsonl."""
    folder = tmp_path_factory.mktemp("tuned")
    words = ("all_reduce", "barrier", *QUICK, "--output", str(folder / "t.json"), "--json", str(folder / "t.jsonl"))
    done = hpccoll(2, "tune", *words)
    assert done.returncode == 0, done.stderr
    assert "fastest" in done.stdout
    return folder


def test_every_candidate_is_measured_checked_and_stored(tuned: Path) -> None:
    found = candidates(tuning_files.read_table(tuned / "t.json"))
    for buffer in ("host", "symmetric"):
        for nbytes in (8, 512):
            assert found.pop(("all_reduce", buffer, nbytes)) == {"mpi", *list_algorithm_names(Operation.ALL_REDUCE)}
    assert found.pop(("barrier", "host", 0)) == {"mpi", *list_algorithm_names(Operation.BARRIER)}, "it has no buffer"
    assert not found
    run, *measured = read_records(tuned / "t.jsonl")
    for row in (run, *measured):
        require_valid(row)
    assert run["kind"] == "run"
    assert all(row["wrong"] == 0 for row in measured)
    assert {(row["engine"], row["buffer"]) for row in measured} == {
        (engine, buffer) for engine in ("mpi", "hpccoll") for buffer in ("host", "symmetric")
    }


def test_the_table_holds_what_the_records_say(tuned: Path) -> None:
    for each in tuning_files.read_table(tuned / "t.json").series:
        for point in each.points:
            said = {
                row["algorithm"] or "mpi": row["time_us"]
                for row in read_records(tuned / "t.jsonl")[1:]
                if (row["op"], row["buffer"], row["nbytes"]) == (each.operation.value, each.buffer, point.nbytes)
            }
            assert {timing.name: (timing.us, timing.low, timing.high) for timing in point.timings} == {
                name: (us["p50"], us["p50_low"], us["p50_high"]) for name, us in said.items()
            }


def test_another_run_adds_to_the_table(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text((tuned / "t.json").read_text())
    before = candidates(tuning_files.read_table(path))
    done = hpccoll(2, "tune", "broadcast", *QUICK, "--buffer", "host", "-d", "float32,float64", "--output", str(path))
    assert done.returncode == 0, done.stderr
    after = candidates(tuning_files.read_table(path))
    assert {key: after[key] for key in before} == before
    assert {key[:2] for key in set(after) - set(before)} == {("broadcast", "host")}
    assert {
        each.itemsize for each in tuning_files.read_table(path).series if each.operation is Operation.BROADCAST
    } == {4, 8}


def test_show_prints_the_table_and_says_where_there_is_none(tuned: Path, tmp_path: Path) -> None:
    done = hpccoll(2, "tune", "--show", HPCCOLL_TUNING=str(tuned / "t.json"))
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in done.stdout
    assert "symmetric" in done.stdout
    ties = [winner for winner in winners(tuning_files.read_table(tuned / "t.json")) if winner.has_tie]
    assert done.stdout.count("(tie)") == len(ties)
    none = hpccoll(2, "tune", "--show", "--output", str(tmp_path / "none.json"))
    assert none.returncode == 2
    assert "no table is stored" in none.stderr


@pytest.mark.parametrize(
    ("ranks", "words", "message"),
    keep_every(
        4,
        [
            (1, (), "mpirun"),
            (2, ("all_reduction",), "all_reduction"),
            (2, ("--buffer", "tape"), "tape"),
            (2, ("-d", "float33"), "float33"),
            (2, ("-b", "1M", "-e", "1K"), "--min-bytes"),
        ],
    ),
)
def test_what_cannot_be_tuned_is_said(ranks: int, words: tuple[str, ...], message: str) -> None:
    done = hpccoll(ranks, "tune", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.json"
    path.write_text('{"chapters": 7}')
    done = hpccoll(2, "tune", "barrier", *QUICK, "--output", str(path))
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert path.read_text() == '{"chapters": 7}'


def test_a_killed_run_leaves_rows_and_a_table_that_can_be_read(tmp_path: Path) -> None:
    out, path = tmp_path / "t.jsonl", tmp_path / "t.json"
    words = ("all_reduce", "-e", "1K", "-f", "2", "--buffer", "host", "--budget", "0.01")
    running = subprocess.Popen(
        command(2, "tune", *words, "--output", str(path), "--json", str(out)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    end = time.monotonic() + LIMIT_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=LIMIT_S)
    *whole, _ = out.read_text().split("\n")
    assert all(json.loads(line)["kind"] in ("run", "collective") for line in whole)
    sizes = {nbytes for _, _, nbytes in candidates(tuning_files.read_table(path))}
    assert 8 in sizes
    assert all(
        found == {"mpi", *list_algorithm_names(Operation.ALL_REDUCE)}
        for found in candidates(tuning_files.read_table(path)).values()
    )


def test_every_rank_gets_the_table(tuned: Path) -> None:
    done = python(2, WHO_READS, HPCCOLL_TUNING=str(tuned / "t.json"))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second != "None"


def test_a_table_for_other_ranks_is_no_table_on_any_rank(tuned: Path) -> None:
    done = python(3, WHO_READS, HPCCOLL_TUNING=str(tuned / "t.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["None"] * 3
    assert done.stderr.count("hpccoll: warning: ") == 1
    assert "2 ranks on 1 node" in done.stderr


def test_auto_takes_what_the_table_says_and_tells_why(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    found = json.loads((tuned / "t.json").read_text())
    for name in ("ring", "mpi", "shared_one_shot"):
        for series in found["series"]:
            for point in series["points"]:
                point["us"] |= {name: [0.25, 0.25, 0.25]} if series["operation"] == "all_reduce" else {}
        path.write_text(json.dumps(found))
        done = python(2, WHO_RUNS, HPCCOLL_TUNING=str(path), HPCCOLL_LOG="1")
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("hpccoll: all_reduce")]
        assert len(told) == 1, done.stderr
        assert told[0].startswith(f"hpccoll: all_reduce 8 B float32 sum on 2 ranks (host): {name}, measured ")
        for series in found["series"]:
            for point in series["points"]:
                point["us"] |= {name: [50.0, 50.0, 50.0]} if series["operation"] == "all_reduce" else {}
    off = python(2, WHO_RUNS, HPCCOLL_TUNING="off", HPCCOLL_LOG="1")
    assert "measured" not in off.stderr
    assert "hpccoll: all_reduce" in off.stderr
