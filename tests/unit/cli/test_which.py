"""`hpccoll which`: the selection of `auto` without a job, its reason and record; the groups of commands in --help."""

from __future__ import annotations

import json

import pytest

from hpccoll.cli import main as cli
from hpccoll.plan import Operation
from hpccoll.selection import BufferKind
from hpccoll.selection.tuning_files import describe_site, write_table
from hpccoll.selection.tuning_table import CandidateTiming, TuningPoint, TuningSeries, TuningTable
from tests.record_schema import require_valid


@pytest.fixture(autouse=True)
def _no_table(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TUNING", "off")


@pytest.mark.parametrize(
    ("words", "algorithm", "reason"),
    [
        ("all_reduce 8 --ranks 2", "shared_one_shot", "the fixed rules of hpccoll"),
        ("allgather 1M --ranks 8", "mpi (the MPI library's own collective)", "the fixed rules of hpccoll"),
        ("all_reduce 1M --ranks 512 --nodes 64", "hierarchical_ring", "the fixed rules of hpccoll"),
        ("scan 1M --ranks 3 -d f2", "chain, in 8 chunks", "the cost model"),
        ("barrier --ranks 2", "shared", "the fixed rules of hpccoll"),
    ],
)
def test_the_answer_has_the_algorithm_and_its_source(words, algorithm, reason, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["which", *words.split()]) == 0
    head, why, table, *_ = capsys.readouterr().out.splitlines()
    assert head.endswith(f"host memory: {algorithm}")
    assert why.startswith(f"why     {reason}")
    assert table == "table   HPCCOLL_TUNING is off"


def test_measured_times_come_first(tmp_path, monkeypatch, capsys):
    from hpccoll.runtime import job

    site = describe_site(job.get_mpi_library(), [2], oversubscribed=False)
    timings = CandidateTiming("ring", 7.0, 6.9, 7.1), CandidateTiming("mpi", 9.0, 8.9, 9.1)
    series = TuningSeries(Operation.ALL_REDUCE, 4, BufferKind.HOST, (TuningPoint(1024, "2026-03-01", timings),))
    write_table(tmp_path / "table.json", TuningTable(site, (series,)))
    monkeypatch.setenv("HPCCOLL_TUNING", str(tmp_path / "table.json"))
    assert cli.main(["which", "all_reduce", "1K", "--ranks", "2", "--json", str(tmp_path / "which.jsonl")]) == 0
    assert "measured 2026-03-01 (7 us; next mpi 9 us)" in capsys.readouterr().out
    record = json.loads((tmp_path / "which.jsonl").read_text().splitlines()[1])
    require_valid(record)
    assert (record["algorithm"], record["source"]) == ("ring", "table")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("all_reduce 1K --ranks 3", "mpirun -n 3 hpccoll bench all_reduce -b 1024 -e 1024"),
        (
            "allreduce 8 --ranks 2 -d f8 -o max --buffer symmetric --machine dgx-h100",
            "mpirun -n 2 hpccoll bench all_reduce -b 8 -e 8 -d f8 -o max --buffer symmetric --machine dgx-h100",
        ),
        ("broadcast 8 --ranks 4 --nodes 2", "mpirun -n 4 hpccoll bench broadcast -b 8 -e 8, in a job of 2 nodes"),
        ("barrier --ranks 2", "mpirun -n 2 hpccoll bench barrier"),
    ],
)
def test_the_command_that_measures_the_call_has_its_options(words, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["which", *words.split()]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"next    {command}"


def test_it_says_why_the_library_is_no_candidate(capsys):
    assert cli.main(["which", "all_reduce", "8", "--ranks", "2", "-o", "max"]) == 0
    assert "not mpi MPI does not define max of NaN" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("all_reduce", "add one, such as 64K"),
        ("all_reduce 8 --ranks 5 --nodes 2", "cannot be divided by --nodes 2"),
        ("brodcast 8", "did you mean broadcast?"),
        ("all_reduce 8 -d bool", "'sum' is not defined for dtype bool"),
    ],
)
def test_wrong_questions_are_refused(words, message, capsys):
    assert cli.main(["which", *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_every_command_is_in_one_group_of_the_help(capsys):
    grouped = [name for names in cli.COMMAND_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(cli.COMMANDS)
    assert cli.main(["--help"]) == 0
    assert all(f"\n{title}:\n" in capsys.readouterr().out for title in ["Measure"])
