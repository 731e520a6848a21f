"""`mpirun -n N hpccoll barrier` in real jobs: records, answers, resumption, and a barrier that hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.depth import keep
from tests.jobs.launch import BIN, LIMIT_S, command, environment, hpccoll
from tests.record_schema import require_valid

QUICK = ("-n", "2", "--engine", "hpccoll,mpi", "--algorithm", "dissemination,barrier")


def read_records(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the records of a result file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if kind in (None, record["kind"])]


@pytest.mark.slow
def test_records_answers_tables_and_picture(tmp_path: Path) -> None:
    out, picture = tmp_path / "out.jsonl", tmp_path / "out.svg"
    words = ("--pattern", "one_late,ascending", "--json", str(out), "--plot", str(picture))
    done = hpccoll(2, "barrier", *QUICK, *words, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    kinds = [record["kind"] for record in read_records(out)]
    assert kinds == ["run", *["barrier"] * 6, "barrier_summary"]
    for record in read_records(out):
        require_valid(record)
    found = {(row["engine"], row["algorithm"], row["pattern"]) for row in read_records(out, "barrier")}
    names = [("hpccoll", "dissemination"), ("mpi", "barrier")]
    assert found == {(*name, pattern) for name in names for pattern in ("none", "one_late", "ascending")}
    (summary,) = read_records(out, "barrier_summary")
    assert summary["fastest"] in {"/".join(name) for name in names}
    assert [(each["engine"], each["algorithm"]) for each in summary["barriers"]] == names
    answers = [line for line in done.stdout.splitlines() if not line.startswith(" ")][:4]
    assert [line.partition("  ")[0] for line in answers] == ["who is late?", "which barrier?", "is it safe?", "trust:"]
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert picture.read_text().rstrip().endswith("</svg>")


def test_output_to_a_file_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    variables = environment()
    variables.pop("COLUMNS", None)
    with out.open("w") as stream:
        words = command(2, "barrier", *QUICK, "--pattern", "none")
        status = subprocess.run(words, env=variables, stdout=stream, stderr=subprocess.PIPE, check=False).returncode
    assert status == 0
    text = out.read_text()
    assert text.startswith("who is late?")
    assert "Lateness in 240 rounds" in text
    assert "\0" not in text


@pytest.mark.slow
def test_an_injected_delay_is_found_in_the_pattern_that_the_user_names(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(3, "barrier", *QUICK, "--pattern", "random", "--inject-delay", "1:10000", "--json", str(out))
    assert done.returncode == 0, done.stderr
    (summary,) = read_records(out, "barrier_summary")
    assert summary["straggler"] == 1, summary["reason"]
    assert summary["inject_delay"] == {"rank": 1, "us": 10000}
    assert "who is late?    rank 1 on " in done.stdout
    waits = {each["rank"]: each["wait_us"] for each in summary["lateness"]}
    assert min(waits, key=lambda rank: waits[rank]) == 1


@pytest.mark.slow
def test_a_rank_whose_core_is_kept_busy_and_the_process_ends_with_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = hpccoll(2, "barrier", *QUICK, "--pattern", "none", "--noise", "1", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert read_records(out, "barrier_summary")[0]["noise_rank"] == 1
    busy = [each for each in psutil.process_iter(["cmdline"]) if "os.getppid() == parent" in str(each.info["cmdline"])]
    assert [each for each in busy if each.create_time() > time.time() - 30 and each.ppid() == 1] == []


@pytest.mark.slow
def test_a_run_is_resumed_after_the_stop_file_ended_it(tmp_path: Path) -> None:
    out, stop = tmp_path / "out.jsonl", tmp_path / "stop"
    words = ("barrier", *QUICK, "--pattern", "random", "--resume", str(out))
    stop.touch()
    done = hpccoll(2, *words, "--stop-file", str(stop))
    assert done.returncode == 130, done.stderr
    first = read_records(out, "barrier")
    assert len(first) == 1
    done = hpccoll(2, *words)
    assert done.returncode == 0, done.stderr
    again = read_records(out, "barrier")
    assert again[: len(first)] == first
    assert len(again) == 4
    assert len({(row["engine"], row["algorithm"], row["pattern"]) for row in again}) == 4
    assert len(read_records(out, "barrier_summary")) == 1


def test_one_rank_and_standard_output() -> None:
    done = hpccoll(1, "barrier", *QUICK, "--json", "-")
    assert done.returncode == 0, done.stderr
    *_, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert summary["straggler"] is None
    assert summary["reason"] == "one rank waits for nobody"


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_stands_still_is_named_and_the_job_ends(tmp_path: Path, stopped: int) -> None:
    out, err = tmp_path / "out.jsonl", tmp_path / "err"
    words = command(2, "barrier", *QUICK, "-n", "1000000", "--timeout", "2", "--json", str(out))
    with err.open("w") as stream:
        job = subprocess.Popen(words, env=environment(), stderr=stream, stdout=subprocess.DEVNULL)
    try:
        ranks: list[psutil.Process] = []
        deadline = time.monotonic() + LIMIT_S
        while not (out.exists() and out.stat().st_size and len(ranks) == 2) and time.monotonic() < deadline:
            time.sleep(0.2)
            ranks = find_ranks(job.pid)
        time.sleep(1)
        ranks[stopped].send_signal(signal.SIGSTOP)
        status = job.wait(LIMIT_S)
    finally:
        for each in ranks:
            if each.is_running():
                each.kill()
        job.kill()
        job.wait()
    told = err.read_text()
    named = (f"rank {stopped} has not entered it: stopped, slow", f"rank {stopped} does not respond: stopped")
    assert any(each in told for each in named), told
    assert f"rank {1 - stopped} waited longer than 2 s" in told
    assert status == 4, told


def find_ranks(launcher: int) -> list[psutil.Process]:
    """Return the processes of the ranks, in order; processes that a rank starts are younger than the rank."""
    found: dict[int, psutil.Process] = {}
    for process in sorted(psutil.Process(launcher).children(recursive=True), key=lambda each: each.pid):
        with suppress(psutil.Error, KeyError):  # processes may end meanwhile; the launcher's own have no rank
            variables = process.environ()
            found.setdefault(int(variables.get("PMI_RANK") or variables["OMPI_COMM_WORLD_RANK"]), process)
    return [found[rank] for rank in sorted(found)]


PAGE = (Path(__file__).parents[2] / "docs" / "barriers.md").read_text(encoding="utf-8")


COMMANDS = [
    line.replace("-n 20", "-n 2")
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def is_unlike_other_tests(words: str) -> bool:
    """Whether no other test runs a command with the same options."""
    return "--plot" in words or " report " in words


def run_of_page(words: str, tmp_path: Path) -> str:
    """Run a command of the page and return its output."""
    variables = environment(PATH=f"{BIN}:{os.environ['PATH']}", COLUMNS="120")
    done = subprocess.run(
        words.split(), capture_output=True, text=True, timeout=LIMIT_S, check=False, env=variables, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", keep(COMMANDS, is_unlike_other_tests))
def test_each_command_of_the_page_runs(words: str, tmp_path: Path) -> None:
    if " report " in words:
        (tmp_path / "barrier.jsonl").write_bytes((Path(__file__).parents[1] / "data" / "barrier-4.jsonl").read_bytes())
    shown = run_of_page(words, tmp_path)
    if " report " not in words:
        answers = re.findall(r"^[a-z ]+[?:]", shown, re.MULTILINE)[:4]
        assert answers == ["who is late?", "which barrier?", "is it safe?", "trust:"]


@pytest.mark.slow
def test_the_outputs_on_the_page_have_the_form_of_today(tmp_path: Path) -> None:
    output = run_of_page(next(words for words in COMMANDS if "--spread" in words), tmp_path)
    headings = [line.split() for line in output.splitlines() if line.startswith(("rank ", "barrier "))]
    shown = [line.split() for line in PAGE.splitlines() if line.startswith("rank  planned")]
    assert shown
    assert all(line in headings for line in shown)
