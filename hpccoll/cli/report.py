"""`hpccoll report`: result files as one HTML page, with what they say in words.

The findings, which --json writes, are records of kind `finding`, as the doctor's: `area`, `severity` (ok, note,
warning, problem), `found`, `evidence`, `remedy`, `provides` (empty) and `hosts` (the nodes that are meant).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from hpccoll.cli.output import STDOUT, is_printing_rank, open_json_lines
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_serial_run_record
from hpccoll.errors import HpccollError

if TYPE_CHECKING:
    from hpccoll.doctor.finding import Finding
    from hpccoll.report.bound_models import BoundModels
    from hpccoll.report.curves import CurveGroup
    from hpccoll.report.findings.runs import BenchRequest
    from hpccoll.report.load import Results, Run

_WIDTH = 110
_SHOWN_REMEDY = 300


@click.command(epilog="Example: hpccoll report results/*.jsonl -o report.html")
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIRECTORY...")
@click.option("-o", "--output", default="report.html", show_default=True, metavar="FILE", help="The page.")
@click.option(
    "--machine", metavar="NAME|FILE.toml", help="Take bounds from a machine; default: one fitted to the rows."
)
@click.option("--no-bound", is_flag=True, help="No distance to the model's bound: nothing is fitted.")
@click.option("--json", "target", metavar="FILE", help="The findings, one JSON record a line; - for standard output.")
def report(files: tuple[str, ...], output: str, machine: str | None, no_bound: bool, target: str | None) -> int:
    """Show result files as one HTML page: findings first, then curves, scaling, pairs of nodes, environment.

    FILE is what `hpccoll bench`, `hpccoll preflight` and `hpccoll doctor` write with --json; a DIRECTORY stands for all
    *.jsonl below it, such as those of a sweep over node counts. The page needs no network and no other file. Ends with
    status 1 when a result in the files is wrong; the page is written all the same.
    """
    if not is_printing_rank():
        return 0
    from hpccoll.measure.output_file import require_writable
    from hpccoll.report.curves import group_curves
    from hpccoll.report.findings.collect import collect_findings
    from hpccoll.report.load import load
    from hpccoll.report.node_pair_sections import build_node_pair_sections
    from hpccoll.report.page import render_page

    _refuse_overwriting(files, output)
    results = load(files)
    require_writable(output, "-o")
    drawn = group_curves(results.rows)
    models = _choose_models(results, drawn, machine, no_bound)
    findings = collect_findings(results, drawn, models, _read_bench_request)
    _write_page(output, render_page(results, drawn, models, findings, build_node_pair_sections(results)))
    with open_json_lines(target) as lines:
        if target is not None:
            lines.write(make_serial_run_record())
        for finding in findings:
            lines.write(finding.as_dict())
    if target != STDOUT:
        _print_findings(results, findings, output)
    return 1 if any(row.record.wrong for row in results.rows) else 0


def _refuse_overwriting(files: Sequence[str], output: str) -> None:
    from hpccoll.errors import UsageError

    if any(Path(file).resolve() == Path(output).resolve() for file in files):
        raise UsageError(f"-o {output}: is one of the result files; name another file for the page")


def _choose_models(results: Results, drawn: Sequence[CurveGroup], machine: str | None, no_bound: bool) -> BoundModels:
    """Return the machines that bounds are taken from: the one that was named, or one fitted for each job."""
    from hpccoll.cli.machine_options import read_measured_rows
    from hpccoll.predict.machine_catalogue import load_machine
    from hpccoll.report.bound_models import BoundModels, fit_machines, list_job_sizes, use_named_machine

    jobs = list_job_sizes(drawn)
    if no_bound:
        return BoundModels()
    if machine is not None:
        return use_named_machine(jobs, load_machine(machine))
    rows = [row for file in results.files for row in read_measured_rows(file, "FILE")]
    with show_progress("machines", len(jobs)) as advance:
        return fit_machines(jobs, rows, advance)


def _read_bench_request(run: Run) -> BenchRequest | None:
    """Return what the command of a run asked for, where it was `hpccoll bench`."""
    from hpccoll.cli.bench import PLACES, bench
    from hpccoll.report.findings.runs import BenchRequest
    from hpccoll.units import parse_size, sizes_between

    words = run.command.split()
    if words[:2] != ["hpccoll", "bench"]:
        return None
    try:
        given = bench.make_context("bench", words[2:], resilient_parsing=True).params
        sizes = sizes_between(parse_size(given["min_bytes"]), parse_size(given["max_bytes"]), int(given["factor"]))
        itemsize = 2 if given["dtype"] == "bfloat16" else np.dtype(given["dtype"]).itemsize
        operations = tuple(given["operations"] or ("all_reduce",))
        return BenchRequest(operations, tuple(sizes), PLACES[given["place"] or "both"], itemsize)
    except (click.ClickException, HpccollError, KeyError, TypeError, ValueError):
        return None  # a command of another version, or a path with blanks in it: nothing is said of it


def _write_page(output: str, text: str) -> None:
    from hpccoll.measure.output_file import unwritable

    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(output, "-o", error) from error


def _print_findings(results: Results, findings: Sequence[Finding], output: str) -> None:
    """Print the findings, and where the page is."""
    for finding in findings:
        severity = finding.severity.name.lower()
        print(textwrap.fill(f"{severity:<8} {finding.area}: {finding.found}", _WIDTH, subsequent_indent=" " * 9))
        for name, text in (("evidence", finding.evidence), ("remedy", finding.remedy)):
            if text:
                short = textwrap.shorten(text, _SHOWN_REMEDY, placeholder=" ...")
                indent = " " * 9
                print(textwrap.fill(f"{name}: {short}", _WIDTH, initial_indent=indent, subsequent_indent=indent + "  "))
    for left in results.foreign:
        click.echo(f"# left out: {left}", err=True)
    rows, pairs = len(results.rows), results.pairs
    size = Path(output).stat().st_size
    print(f"{output}: {len(findings)} findings on {rows} measurements and {pairs} pairs of nodes, {size / 1e3:.0f} kB")
