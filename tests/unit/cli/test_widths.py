"""Every table of every command at the widths of terminals and in a pipe: no line is too long, and no number is cut."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import hpccoll.cli.barrier
import hpccoll.cli.doctor
import hpccoll.cli.main as cli
import hpccoll.cli.preflight
import hpccoll.cli.train_output
import hpccoll.cli.tune
from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.barrier_calls import list_barrier_names
from hpccoll.barrier_suite.straggler import ArrivalEvidence, StragglerReport
from hpccoll.barrier_suite.summary import make_summary
from hpccoll.cli.output import print_table
from hpccoll.doctor import Finding
from hpccoll.doctor.finding import Severity
from hpccoll.measure.display.result_rows import ResultRows
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.measure.results.measured_case import list_table_cases
from hpccoll.measure.verdict.text import format_verdict
from hpccoll.measure.verdict.trust import RunConditions
from hpccoll.parallel import Mesh
from hpccoll.plan import Operation
from hpccoll.preflight.link_benchmark import LinkSample
from hpccoll.preflight.node_benchmark import NodeSpeed
from hpccoll.preflight.results import PreflightResults
from hpccoll.records import BarrierRecord, CollectiveCase, CollectiveRecord, StopReason, TimeSummary, TrainStepRecord
from hpccoll.selection.tuning_table import (
    BufferKind,
    CandidateTiming,
    TuningPoint,
    TuningSeries,
    TuningSite,
    TuningTable,
)
from hpccoll.text_table import find_output_width
from hpccoll.train.options import MlpConfig, TrainOptions
from hpccoll.train.record import describe_mesh
from tests.unit.compare.synthetic_runs import make_records, write_run

LONG_NAMES = ("reduce_scatter", "all_gather", "all_to_all", "all_reduce")
WIDTHS = (80, 100, 120, 200)
CASE = CollectiveCase("all_reduce", "mpi", None, "host", True, 1024, 256, "float32", "sum", None, 4, 1)
ENGINES = ("mpi", None), ("gloo", None), ("torch-hpccoll", None)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?:x| ?(?:[mun]?s|[KMG]iB|B|%|GB/s))?(?![\w])")


def measure(nodes: int = 1, ranks: int = 4) -> list[CollectiveRecord]:
    """Return the records of a benchmark over sizes from 8 B to 64 MiB, with long and short numbers and names."""
    found = []
    for nbytes in (8, 512, 65536, 1 << 26):
        for at, (engine, name) in enumerate([*ENGINES, ("hpccoll", "auto"), ("hpccoll", "hierarchical_doubling")]):
            us = (nbytes / 700 + 1.25) * (1 + at) * nodes
            samples = tuple(us * (1 + 0.001 * (k % 5 - 2)) for k in range(20))
            row = {"nbytes": nbytes, "count": nbytes // 4, "nodes": nodes, "ranks": ranks}
            case = replace(CASE, engine=engine, algorithm=name, **row)
            selected = "hierarchical_doubling" if name == "auto" else None
            found.append(make_collective_record(case, samples, StopReason.CONVERGED, 0, selected=selected))
    return found


def write_records(path: Path, records: list[CollectiveRecord]) -> str:
    path.write_text("".join(json.dumps(each.as_dict()) + "\n" for each in records))
    return str(path)


def print_bench(_: Path) -> None:
    records, width = measure(), find_output_width()
    rows = ResultRows(sys.stdout, width or 120, ["auto", "hierarchical_doubling"], memory=False, place=False)
    block = len(ENGINES) + 2
    for first in range(0, len(records), block):
        rows.print_block(records[first : first + block])
    print(format_verdict(list_table_cases(records), RunConditions(), width))


def print_scaling(path: Path) -> None:
    layouts = [(2**k, 4 * 2**k) for k in range(10)]
    files = [write_records(path / f"{nodes}.jsonl", measure(nodes, ranks)) for nodes, ranks in layouts]
    assert cli.main(["scaling", *files]) == 0


def print_compared(path: Path) -> None:
    slower = {("reduce_scatter", "hpccoll"): 1.5}
    runs = [make_records(seed, slower if seed > 1 else None, operations=LONG_NAMES) for seed in range(4)]
    files = [write_run(path / "ab"[seed > 1] / f"{seed}.jsonl", records) for seed, records in enumerate(runs)]
    environment = {"hosts": ["cluster-node-0001", "cluster-node-0002"], "versions": {"mpi": "Open MPI 5.0.8"}}
    write_run(path / "b" / "2.jsonl", make_records(2, operations=LONG_NAMES[:3]), **environment)
    assert len(files) == 4
    for more in ([], ["--paired", "--rows", "--tolerance", "2.5%"]):
        cli.main(["compare", str(path / "a"), str(path / "b"), *more])


def print_guidelines(path: Path) -> None:
    operations = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast")
    slower = {("all_reduce", "mpi"): 4.0, ("reduce", "mpi"): 300.0}
    assert cli.main(["compare", write_run(path / "rows.jsonl", make_records(1, slower, operations=operations))]) == 1


def print_report(path: Path) -> None:
    file = write_records(path / "rows.jsonl", measure())
    assert cli.main(["report", file, "--no-bound", "-o", str(path / "page.html")]) == 0


def make_timing(name: str, us: float) -> CandidateTiming:
    return CandidateTiming(name, us, 0.99 * us, 1.01 * us)


def print_tuned(path: Path) -> None:
    site = TuningSite("MPICH 5.0.2", "AMD EPYC, 64 cores, 4 NUMA nodes", "64 ranks on 1 node")
    names = ("hierarchical_doubling", "mpi", "recursive_doubling")
    points = tuple(
        TuningPoint(nbytes, "2026-11-22", tuple(make_timing(name, nbytes / 7 + at) for at, name in enumerate(names)))
        for nbytes in (8, 4096, 1 << 26)
    )
    series = TuningSeries(Operation.ALL_REDUCE, 4, BufferKind.HOST, points)
    hpccoll.cli.tune._print_series(TuningTable(site, (series,)), path / "table.json", [series])


def print_trained(_: Path) -> None:
    first = TrainStepRecord(
        **describe_mesh(Mesh(dp=2, tp=2), TrainOptions(MlpConfig(), 3)),
        step=1,
        loss=123456.78901,
        step_s=0.012345,
        tokens_per_s=5184.5,
        comm_s=0.00123,
        exposed_comm_s=0.00123,
        bubble=0.25,
        peak_bytes=1 << 34,
        grad_norm=9876.54321,
    )
    steps = [replace(first, step=step) for step in range(1, 4)]
    headings = hpccoll.cli.train_output.HEADINGS
    print_table("Steps", headings, [hpccoll.cli.train_output._format_step(each) for each in steps], headings)


def print_preflight(_: Path) -> None:
    nodes = tuple(f"cluster-node-{node:04}" for node in range(12))
    results = PreflightResults(nodes, 1 << 20)
    for a in range(12):
        results.speeds[a] = [NodeSpeed(5e9 + a, 1e9)]
        for b in range(12):
            if a != b:
                results.links[a, b] = [LinkSample(1e-6 * (12345.6 + a), 1e-3 * (b + 1))]
    hpccoll.cli.preflight._print_results(results, [])


def print_doctor(_: Path) -> None:
    found = "2 ranks on 1 core: waiting ranks take CPU time from working ones, and 27 files (1.25 GiB) were left"
    findings = [Finding("shared memory", Severity.WARNING, found, "; ".join([found] * 4), "mpirun -n 1 hpccoll")]
    width = min(hpccoll.cli.doctor.MAX_WIDTH, find_output_width() or hpccoll.cli.doctor.MAX_WIDTH)
    print("\n".join(hpccoll.cli.doctor.format_findings(findings, verbose=True, width=width)))


def call(*arguments: str) -> Callable[[Path], None]:
    """Return a function that runs a command."""

    def run(_: Path) -> None:
        assert cli.main(arguments) == 0

    return run


def print_barrier(_: Path) -> None:
    time = TimeSummary(1234.567, 1234.567, 1200.123, 1300.456, 2345.678, None, 9876.543)
    names = [(engine, name) for engine in ("hpccoll", "mpi") for name in list_barrier_names(engine)]
    rows = [
        make_barrier_row(engine, name, pattern.value, time)
        for engine, name in (*names, ("gloo", "barrier"))
        for pattern in ArrivalPattern
    ]
    report = StragglerReport(
        17, "rank 17 entered last in 239 of 240 rounds, in the median 1234.5 us after the others", 1e-5, 2e-5, 240,
        tuple(ArrivalEvidence(rank, rank, 1e-3 / (rank + 1), 1e-3, 1e-3, 1e-1) for rank in range(64)),
    )  # fmt: skip
    nodes = tuple(f"cluster-node-{rank // 4:04}" for rank in range(64))
    conditions = {"clock": "hca3", "clock_residual_us": 1.234, "clock_cost_s": 5.678, "oversubscribed": True}
    summary = make_summary(rows, report, nodes, 1111.222, **conditions, inject_delay=None, noise_rank=None)
    hpccoll.cli.barrier.print_results(summary, rows)


def make_barrier_row(engine: str, name: str, pattern: str, time: TimeSummary) -> BarrierRecord:
    """Return a row of the barrier suite whose times are all long."""
    each = (1234.567,) * 64
    return BarrierRecord(
        engine=engine, algorithm=name, pattern=pattern, spread_us=1234.567, ranks=64, nodes=16, rounds=100,
        late_rounds=50, planned_us=each, entry_us=each, exit_us=each, wait_us=each, release_order=tuple(range(64)),
        entry_spread_us=time, completion_us=time, exit_skew_us=time, absorbed=-1.2345, unsafe=100, clock_error_us=1.0,
        machine="fit:this run", predicted_us=1111.222, predicted_exit_skew_us=222.333, all_reduce_us=time,
        completion_samples_us=each, exit_skew_samples_us=each,
    )  # fmt: skip


COMMANDS = {
    "barrier": print_barrier,
    "bench": print_bench,
    "compare": print_compared,
    "compare one": print_guidelines,
    "demo": call("demo"),
    "estimate": call("estimate", "mixtral-8x7b", "--mesh", "dp=2,tp=2,pp=2,cp=2,ep=2", "--zero", "3"),
    "estimate --search": call("estimate", "llama-2-7b", "--search", "--ranks", "8"),
    "doctor": print_doctor,
    "preflight": print_preflight,
    "report": print_report,
    "scaling": print_scaling,
    "simulate": call("simulate", "all_reduce", "--ranks", "16,64", "--size", "8,1.5M"),
    "simulate one": call("simulate", "all_reduce/hierarchical_doubling", "--ranks", "24576", "--machine", "summit"),
    "train": print_trained,
    "tune --show": print_tuned,
    "verify": call("verify", "all_reduce", "barrier", "--ranks", "2:5"),
}


def show(name: str, width: int | None, tmp_path: Path, monkeypatch, capsys) -> str:
    """Return the output of a command to a pipe, with the width in COLUMNS, or without a width."""
    if width is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(width))
    capsys.readouterr()
    COMMANDS[name](tmp_path)
    return str(capsys.readouterr().out)


def list_numbers(text: str) -> set[str]:
    """Return the numbers of a text with their units; times of the run itself do not count."""
    text = re.sub(r" +", " ", " ".join(line.strip() for line in text.splitlines()))
    return {match.strip(".,") for match in NUMBER.findall(text)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_tables_fit_and_no_number_is_cut(name, width, tmp_path, monkeypatch, capsys):
    narrow = show(name, width, tmp_path, monkeypatch, capsys)
    for line in narrow.splitlines():
        assert len(line) <= width or str(tmp_path) in line, line
        assert "\u2026" not in line
    if name == "verify":  # states the CPU time of each run
        narrow = re.sub(r"\b\d+\.\d\d\b(?!\d)", "", narrow)
    whole = show(name, None, tmp_path, monkeypatch, capsys)
    cut = list_numbers(narrow) - list_numbers(whole) - {str(width)}
    assert not cut


def test_a_pipe_shows_every_number_of_the_records(tmp_path, monkeypatch, capsys):
    shown = show("simulate", None, tmp_path, monkeypatch, capsys)
    file = tmp_path / "simulated.jsonl"
    arguments = ["simulate", "all_reduce", "--ranks", "16,64", "--size", "8,1.5M"]
    assert cli.main([*arguments, "--json", str(file), "--overwrite"]) == 0
    _, *records = map(json.loads, file.read_text().splitlines())
    rows = [line.split() for line in shown.splitlines() if re.match(r"all_reduce/\S+ +\d", line)]
    assert len(rows) == len(records) > 20
    for row, record in zip(rows, records, strict=True):
        assert row[:3] == [f"all_reduce/{record['algorithm']}", str(record["ranks"]), str(record["nodes"])]
        assert str(record["steps"]) in row
        assert any(cell.replace(".", "", 1).isdigit() and _is_time(cell, record["time_us"]) for cell in row)


def _is_time(cell: str, time_us: float) -> bool:
    """Whether a cell is a time, in some unit, with four digits."""
    return any(f"{time_us / unit:.4g}" == cell for unit in (1, 1e3, 1e6))
