"""`mpirun -n N hpccoll bench` in real jobs: records, resumption, refused options, and files after a crash."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpccoll.algorithms import list_algorithm_names
from hpccoll.plan import Operation
from tests.depth import keep_every
from tests.jobs.launch import command, environment, hpccoll
from tests.record_schema import require_valid

QUICK = ("-n", "3", "-b", "8", "-e", "512", "-f", "64")


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the records of a result file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_measurements(path: Path) -> list[dict[str, Any]]:
    """Return the records of kind `collective` of a result file."""
    return [row for row in rows(path) if row["kind"] == "collective"]


@pytest.mark.slow
def test_all_algorithms_are_measured_beside_every_engine_that_is_here(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(2, "bench", *QUICK, "--full", "--json", str(out))
    assert done.returncode == 0, done.stderr
    run, *found = rows(out)[:-1]
    assert run["kind"] == "run"
    assert run["ranks"] == 2
    assert (run["limit_nbytes"], run["limit_us"] > 0) == (512, True)
    assert {row["engine"] for row in found} >= {"mpi", "hpccoll"}
    algorithms = {row["algorithm"] for row in found if row["engine"] == "hpccoll"}
    assert algorithms == {*list_algorithm_names(Operation.ALL_REDUCE), "auto"}
    assert {(row["nbytes"], row["in_place"]) for row in found} == {(8, False), (8, True), (512, False), (512, True)}
    assert all(row["wrong"] == 0 and row["iterations"] == 3 and row["stop"] == "iterations" for row in found)
    for row in (run, *found):
        require_valid(row)
    assert "out-of-place" in done.stdout, "the table of nccl-tests"
    assert "recursive_doubling" in done.stdout
    assert "# Avg bus bandwidth    : " in done.stdout
    assert "trust: " in done.stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")
def test_iterations_start_in_windows_of_a_clock_whose_error_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(2, "bench", *QUICK, "--engine", "mpi", "--json", str(out), "--clock", "skampi")
    assert done.returncode == 0, done.stderr
    run, *found = rows(out)[:-1]
    assert run["clock"] == "skampi"
    assert 0 <= run["clock_residual_us"] <= run["clock_bound_us"]
    assert run["clock_sync_s"] > 0
    for row in found:  # with many other programs on the cores, barriers replace windows that ranks miss
        assert row["start"] == "window" or row["discarded"] > 50
        assert (row["clock_residual_us"] is not None) == (row["start"] == "window")
    assert "starts: " in done.stdout


def test_a_window_that_is_too_short_is_an_error_with_a_remedy() -> None:
    done = hpccoll(2, "bench", "-e", "8", "--engine", "mpi", "--window", "0.01")
    if len(os.sched_getaffinity(0)) >= 2:
        assert done.returncode == 2
        assert "--window 0.01 is too short: a rank missed the start of " in done.stderr


def test_more_ranks_than_cores_start_by_barriers(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    ranks = len(os.sched_getaffinity(0)) + 1
    done = hpccoll(ranks, "bench", "-n", "3", "-e", "8", "--engine", "mpi", "--start", "window", "--json", str(out))
    assert done.returncode == 0, done.stderr
    run, row, _ = rows(out)
    assert (run["clock"], run["clock_residual_us"]) == (None, None)
    assert (row["start"], row["discarded"], row["clock_residual_us"]) == ("barrier", 0, None)
    assert "starts: by barriers, as there are more ranks than cores" in done.stdout


def test_the_last_record_states_what_the_run_took(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ("-b", "16M", "-e", "16M", "-n", "2", "--algorithm", "all", "--engine", "mpi,hpccoll", "--json", str(out))
    done = hpccoll(2, "bench", "all_reduce", *words)
    assert done.returncode == 0, done.stderr
    *_, summary = rows(out)
    require_valid(summary)
    assert summary["kind"] == "bench_summary"
    assert 0 <= summary["sync_s"] <= 0.1 * summary["seconds"]
    # Python and the libraries take about 120 MB. With all inputs, references and a copy per algorithm, it was 900 MB.
    assert 64e6 < summary["peak_bytes"] < 300e6
    assert "# memory: 4 messages of 16 MiB, 64 MiB per rank; " in done.stderr


def test_messages_that_do_not_fit_into_memory_are_left_out_by_name(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ("-b", "8", "-e", "8T", "-f", "1099511627776", "-n", "2", "--engine", "mpi", "--json", str(out))
    done = hpccoll(2, "bench", "all_reduce", *words)
    assert done.returncode == 0, done.stderr
    assert "# left out: messages of 8 TiB: 4 of them need 32 TiB or more per rank, " in done.stderr
    assert "name smaller messages by --max-bytes" in done.stderr
    assert [row["nbytes"] for row in read_measurements(out)] == [8]
    assert rows(out)[-1]["left_out_sizes"] == [8 << 40]
    done = hpccoll(2, "bench", "all_reduce", "-b", "8T", "-e", "8T", "--engine", "mpi")
    assert done.returncode == 3
    assert "Error: no message size fits into memory: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("size", ["64K", "1M"])
def test_shared_memory_holds_the_buffers_of_a_call_that_is_not_in_place(tmp_path: Path, size: str) -> None:
    out = tmp_path / "out.jsonl"
    words = ("-b", size, "-e", size, "-n", "2", "--buffer", "symmetric", "--out-of-place", "--engine", "mpi,hpccoll")
    done = hpccoll(2, "bench", "all_reduce", *words, "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert all(row["wrong"] == 0 and row["nbytes"] >= 65536 for row in read_measurements(out))


def test_by_default_few_are_compared_in_place_and_auto_is_among_them(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(2, "bench", *QUICK, "--engine", "mpi,hpccoll", "--json", str(out))
    assert done.returncode == 0, done.stderr
    found = read_measurements(out)
    assert {row["in_place"] for row in found} == {True}
    algorithms = {row["algorithm"] for row in found if row["engine"] == "hpccoll"}
    assert 2 < len(algorithms) < 8
    assert rows(out)[0]["sizes"] == [8, 512]
    for row in found:
        known = {"mpi", *list_algorithm_names(Operation.ALL_REDUCE)}
        assert row["selected"] in known if row["algorithm"] == "auto" else row["selected"] is None
    assert {row["nbytes"] for row in found if row["algorithm"] == "auto"} == {8, 512}
    assert max(map(len, done.stdout.splitlines())) <= 120
    text = done.stdout
    assert text.index(" recursive_doubling ") < text.index("# Avg bus bandwidth") < text.index("auto takes")
    for size in ("  8 B", "512 B"):
        assert any(line.startswith(size) and re.search(" [um]s ", line) for line in text.splitlines()), text
    for keyword in ("use:", "auto:", "trust:", "next:"):
        assert f"\n{keyword}" in text
    rows_end = max(match.start() for match in re.finditer(r"^ *\d+ B ", text, re.MULTILINE))
    assert rows_end < text.index("\nuse:")


def test_rows_appear_as_they_finish() -> None:
    """The first row of a run of several minutes can be read; the test then ends the run."""
    words = command(2, "bench", "-b", "8", "-e", "16M", "--engine", "mpi,hpccoll", "--algorithm", "ring", "-n", "2000")
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        first = next((line for line in job.stdout if line.split()[:2] == ["8", "B"]), None)
        job.terminate()
        rest = job.stdout.read()
    assert first is not None
    assert "16 MiB" not in rest


def test_two_kinds_of_memory_are_measured_side_by_side(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ("all_reduce", "barrier", *QUICK, "--engine", "mpi,hpccoll", "--buffer", "host,symmetric")
    done = hpccoll(2, "bench", *words, "--json", str(out))
    assert done.returncode == 0, done.stderr
    order = [(row["nbytes"], row["buffer"]) for row in read_measurements(out)]
    assert list(dict.fromkeys(order)) == [(8, "host"), (8, "symmetric"), (512, "host"), (512, "symmetric"), (0, "host")]
    assert "# all_reduce, float32, sum, 2 ranks on 1 node\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_the_library_is_an_algorithm_too(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(2, "bench", *QUICK, "--engine", "hpccoll", "--algorithm", "mpi,auto", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert {row["algorithm"] for row in read_measurements(out)} == {"mpi", "auto"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("int16", marks=pytest.mark.full)])
def test_every_operation_gives_right_results(tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "out.jsonl"
    every = [operation.value for operation in Operation]
    done = hpccoll(
        3, "bench", *every, *QUICK, "-d", dtype, "-r", "1", "--engine", "mpi,hpccoll", "--full", "--json", str(out)
    )
    assert done.returncode == 0, done.stderr
    found = read_measurements(out)
    for operation in Operation:
        seen = {row["algorithm"] for row in found if row["op"] == operation.value and row["engine"] == "hpccoll"}
        assert seen == {*list_algorithm_names(operation), "auto"}
    assert all(row["wrong"] == 0 for row in found)
    assert {row["root"] for row in found} == {None, 1}


@pytest.mark.slow
def test_resume_measures_only_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = ("bench", *QUICK, "--engine", "hpccoll", "--algorithm", "ring,tree", "--in-place")
    assert hpccoll(2, *words, "--resume", str(out)).returncode == 0
    lines = out.read_text().splitlines()
    assert len(lines) == 1 + 4 + 1
    out.write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:40])  # the last row torn, as by a kill
    done = hpccoll(2, *words, "--resume", str(out))
    assert done.returncode == 0, done.stderr
    again = read_measurements(out)
    assert len(again) == 4
    assert len({(row["nbytes"], row["algorithm"]) for row in again}) == 4
    assert again[:3] == [json.loads(line) for line in lines[1:-2]]


@pytest.mark.slow
def test_a_resumed_run_stops_early_only_while_cases_are_left(tmp_path: Path) -> None:
    out, stop = tmp_path / "out.jsonl", tmp_path / "stop"
    words = ("bench", "-n", "3", "-b", "8", "-e", "8", "--engine", "hpccoll", "--resume", str(out))
    assert hpccoll(2, *words, "--algorithm", "ring,tree,swing,rabenseifner").returncode == 0
    stop.touch()
    other = (*words, "--dtype", "float64", "--algorithm", "ring,tree", "--stop-file", str(stop))
    done = hpccoll(2, *other)
    assert done.returncode == 130, done.stderr
    assert len(read_measurements(out)) == 5, "one row, although the file has as many rows as were asked for"
    assert hpccoll(2, *other).returncode == 0
    assert len(read_measurements(out)) == 6


def test_killed_run_leaves_finished_rows(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    words = command(2, "bench", "--budget", "30", "-b", "8", "-e", "16M", "-n", "100", "--json", str(out))
    job = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (out.exists() and len(out.read_text().splitlines()) > 3) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert job.poll() is None, "the run ended before it could be killed"
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    complete = out.read_bytes().split(b"\n")[:-1]
    assert len([json.loads(line) for line in complete]) > 3


@pytest.mark.slow
def test_hpccoll_through_torch_is_measured_beside_the_other_engines(tmp_path: Path) -> None:
    out, plot = tmp_path / "out.jsonl", tmp_path / "out.svg"
    engines = ("--engine", "mpi,gloo,torch-hpccoll,hpccoll", "--algorithm", "auto")
    done = hpccoll(2, "bench", "all_reduce", "broadcast", *QUICK, *engines, "--json", str(out), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    rows = [row for row in read_measurements(out) if row["engine"] == "torch-hpccoll"]
    assert {row["op"] for row in rows} == {"all_reduce", "broadcast"}
    assert all(row["wrong"] == 0 for row in rows)
    assert "torch-hpccoll" in done.stdout


def test_sheet_and_plot(tmp_path: Path) -> None:
    sheet, plot = tmp_path / "out.csv", tmp_path / "out.svg"
    words = ("--engine", "mpi,hpccoll", "--algorithm", "ring,tree", "--both", "--csv", str(sheet), "--plot", str(plot))
    done = hpccoll(2, "bench", *QUICK, *words)
    assert done.returncode == 0, done.stderr
    with sheet.open() as stream:
        assert len(list(csv.DictReader(stream))) == 2 * 2 * 3
    assert plot.read_text().rstrip().endswith("</svg>")


@pytest.mark.slow
def test_the_verdict_is_printed_before_the_error_of_a_full_disk() -> None:
    done = hpccoll(2, "bench", *QUICK, "--engine", "mpi,hpccoll", "--algorithm", "ring", "--csv", "/dev/full")
    assert done.returncode == 2, done.stderr
    assert "trust: results: all" in done.stdout
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert said.startswith("Error: --csv /dev/full: cannot write this file (No space left on device)")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_sizes_that_are_no_whole_elements_are_rounded_and_named() -> None:
    sizes = ("-b", "3", "-e", "3", "-n", "2")
    done = hpccoll(2, "bench", "all_reduce", "all_gather", *sizes, "--engine", "mpi")
    assert done.returncode == 0, done.stderr
    reason = "# sizes rounded to whole elements of float32 (4 B) and blocks of equal size: "
    assert f"{reason}all_reduce 3 B to 4 B, all_gather 3 B to 8 B" in done.stderr
    assert "# sizes rounded" not in hpccoll(2, "bench", *QUICK, "--engine", "mpi").stderr


@pytest.mark.slow
def test_messages_of_no_bytes_are_measured() -> None:
    done = hpccoll(2, "bench", "all_reduce", "-b", "0", "-e", "0", "-n", "2", "--engine", "mpi,hpccoll")
    assert done.returncode == 0, done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout


@pytest.mark.slow
def test_an_existing_file_is_kept_unless_overwriting_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    words = ("bench", *QUICK, "--engine", "mpi", "--json", str(out))
    done = hpccoll(3, *words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("the file exists; add --overwrite to replace it, or --resume") == 1
    assert out.read_text() == "precious\n"
    assert hpccoll(3, *words, "--overwrite").returncode == 0
    assert len(read_measurements(out)) == 2


def test_one_rank_and_standard_output() -> None:
    done = hpccoll(1, "bench", *QUICK, "--engine", "mpi,hpccoll", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["schema"] == "hpccoll/1" for line in done.stdout.splitlines())
    assert "one rank sends nothing" in done.stderr


def test_symmetric_buffers() -> None:
    done = hpccoll(3, "bench", "all_reduce", "all_gather", *QUICK, "--engine", "hpccoll", "--buffer", "symmetric")
    assert done.returncode == 0, done.stderr
    assert "symmetric" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "told"),
    keep_every(
        4,
        [
            (["all_reduse"], 2, "all_reduce"),
            (["--algorithm", "rign"], 2, "recursive_doubling"),
            (["--engine", "mpi,magic"], 2, "gloo"),
            (["-d", "float31"], 2, "float32"),
            (["-o", "median"], 2, "prod"),
            (["-o", "band"], 2, "float32"),
            (["-r", "7"], 2, "--root 7"),
            (["-b", "1M", "-e", "8"], 2, "--min-bytes"),
            (["-b", "12Q"], 2, "12Q"),
            (["-n", "0"], 2, "--iterations"),
            (["--buffer", "tape"], 2, "symmetric"),
            (["--json", "/nowhere/out.jsonl"], 2, "/nowhere/out.jsonl"),
            (["--plot", "plot.bmp"], 2, ".png"),
            (["--engine", "nccl"], 3, "nccl"),
            (["--buffer", "cuda"], 3, "cuda"),
        ],
    ),
)
def test_what_cannot_be_done_is_said_once_with_its_status(words: list[str], status: int, told: str) -> None:
    done = hpccoll(2, "bench", *words)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(said) == 1
