"""`hpccoll report`: renders result files as one HTML page, and prints the findings; explains crashes (--crash).

--json writes the findings as records of kind `finding`, in the doctor's format: `area`, `severity` (ok, note, warning,
problem), `found`, `evidence`, `remedy`, `provides` (always empty) and `hosts` (the affected nodes). With --crash,
--json writes one record of kind `crash`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from hpccoll.atomic_files import write_atomically
from hpccoll.cli.network_options import NETWORK_KINDS, is_machine_model, load_network
from hpccoll.cli.output import STDOUT, is_printing_rank, json_option, list_given_options, print_text
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import write_serial_records
from hpccoll.errors import HpccollError, UsageError
from hpccoll.text_table import find_output_width
from hpccoll.units import format_count

if TYPE_CHECKING:
    from hpccoll.doctor.finding import Finding
    from hpccoll.report.bound_models import BoundModels
    from hpccoll.report.curves import CurveGroup
    from hpccoll.report.findings import BenchRequest
    from hpccoll.report.load import RecordedRun, Results

_WIDTH = 110
_MAX_TEXT = 300


@click.command(epilog="Example: hpccoll report results/*.jsonl -o report.html")
@click.argument("files", nargs=-1, metavar="[FILE|DIRECTORY]...")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="FILE", help="The HTML page to write."
)
@click.option(
    "--machine", metavar=NETWORK_KINDS, help="Machine model or network for lower bounds; default: a fitted model."
)
@click.option(
    "--crash", "crash_directory", metavar="DIR", help="Explain a job that hung or crashed, from its recorder files."
)
@click.option(
    "--torch-format", "traces", metavar="DIR", help="Also write the --crash recordings for PyTorch's `torchfrtrace`."
)
@click.option("--no-bound", is_flag=True, help="Do not compare times with a model's lower bound.")
@json_option("Write findings as JSON Lines; - for standard output.")
def report(
    files: tuple[str, ...],
    output: str,
    machine: str | None,
    crash_directory: str | None,
    traces: str | None,
    no_bound: bool,
    json_file: str | None,
) -> int:
    """Write one HTML page from result files: findings, curves, scaling, barriers, links, environment.

    FILE is an output of `hpccoll bench`, `hpccoll barrier`, `hpccoll preflight` or `hpccoll doctor` with --json;
    DIRECTORY means all *.jsonl below it, such as those of a sweep over node counts. The page needs no network and no
    other file. The findings are also printed, or written to --json. Under mpirun one rank makes the page. The exit
    status is 1 if a result in the files is wrong; the page is written all the same.

    With --crash, no page is written. The files of the flight recorder in DIR (HPCCOLL_RECORDER of the job, or
    /dev/shm) tell which rank made a job hang or crash, and what each rank did last. The job may still run.
    """
    if not is_printing_rank():
        return 0
    if crash_directory is not None:
        unused = [*files, *list_given_options("output", "machine", "no_bound")]
        if unused:
            raise UsageError(f"--crash {crash_directory} writes no page; leave {' and '.join(unused)} out")
        return _report_crash(crash_directory, traces, json_file)
    if traces is not None:
        raise UsageError(f"--torch-format {traces} writes recordings; name their directory by --crash DIR")
    if not files:
        raise click.UsageError("Missing argument FILE|DIRECTORY..., or --crash DIR", click.get_current_context())
    return _write_page(files, output, machine, no_bound, json_file)


def _write_page(files: tuple[str, ...], output: str, machine: str | None, no_bound: bool, json_file: str | None) -> int:
    """Write the HTML page of result files, and print or write the findings; return the exit status.

    Args:
        files: result files and directories.
        output: the path of the page.
        machine: the value of --machine; None fits models to the results.
        no_bound: whether to leave out lower bounds of times.
    """
    from hpccoll.measure.results.output_file import explain_write_errors, require_writable
    from hpccoll.report.barrier_sections import build_barrier_sections
    from hpccoll.report.curves import group_curves
    from hpccoll.report.findings import collect_findings
    from hpccoll.report.load import load_results
    from hpccoll.report.node_pair_sections import build_node_pair_sections
    from hpccoll.report.page import render_page
    from hpccoll.report.train_sections import build_train_sections

    if any(Path(file).resolve() == Path(output).resolve() for file in files):
        raise UsageError(f"-o {output}: is one of the result files; name another file for the page")
    results = load_results(files)
    require_writable(output, "-o")
    groups = group_curves(results.rows)
    models = _choose_models(results, groups, machine, no_bound)
    findings = collect_findings(results, groups, models, _read_bench_request)
    more = [*build_train_sections(results), *build_barrier_sections(results), *build_node_pair_sections(results)]
    page = render_page(results, groups, models, findings, more)
    with explain_write_errors(output, "-o"):
        write_atomically(output, page)
    write_serial_records(json_file, [finding.make_record() for finding in findings])
    if json_file != STDOUT:
        _print_findings(results, findings, output)
    return 1 if any(row.record.wrong for row in results.rows) else 0


def _report_crash(directory: str, traces: str | None, json_file: str | None) -> int:
    """Print why a job hung or crashed, and write a record to `json_file` unless it is None; return 0.

    Args:
        directory: has the files of the job's flight recorder.
        traces: directory for copies of the recorder's files in the format of PyTorch's `torchfrtrace`; None: no copies.
        json_file: the value of --json; with `-`, only the record is printed.
    """
    from hpccoll.crash import analyze, format_analysis
    from hpccoll.recordings import read_recordings, write_torch_traces
    from hpccoll.recordings.job_evidence import make_evidence, observe_processes
    from hpccoll.report.crash_record import make_crash_record

    recorded = read_recordings(directory)
    if traces is not None:
        try:
            write_torch_traces(recorded.recordings, Path(traces))
        except OSError as error:
            raise UsageError(
                f"--torch-format {traces}: {error.strerror}; name a directory that can be written"
            ) from error
    evidence = make_evidence(recorded.recordings, observe_processes(recorded.recordings))
    analysis = analyze(evidence)
    write_serial_records(json_file, [make_crash_record(evidence, analysis, recorded.problems)])
    if json_file != STDOUT:
        click.echo(format_analysis(evidence, analysis))
    for problem in recorded.problems:
        click.echo(f"# skipped: {problem}", err=True)
    return 0


def _choose_models(results: Results, groups: Sequence[CurveGroup], machine: str | None, no_bound: bool) -> BoundModels:
    """Return the models with which the page computes lower bounds of times.

    Without --machine, this function reads the result files again, and fits a machine model to the results of each job;
    meanwhile, it shows a progress bar.

    Args:
        groups: the curves of the page, from which the ranks and nodes of all jobs are taken.
        machine: the value of --machine; None if it is not given.
        no_bound: the value of --no-bound; True computes no bounds.
    """
    from hpccoll.cli.machine_options import read_measured_rows
    from hpccoll.predict.machine_catalogue import load_machine
    from hpccoll.report.bound_models import BoundModels, collect_limits, fit_machines, list_job_sizes, use_named_machine

    jobs = list_job_sizes(groups)
    if no_bound:
        return BoundModels()
    if machine is not None and not is_machine_model(machine):
        return BoundModels(networks={job: load_network(machine, *job) for job in jobs})
    if machine is not None:
        return use_named_machine(jobs, load_machine(machine))
    rows = [row for file in results.files for row in read_measured_rows(file, "FILE")]
    with show_progress("machines", len(jobs)) as advance:
        return replace(fit_machines(jobs, rows, advance), limits=collect_limits(results.rows))


def _read_bench_request(run: RecordedRun) -> BenchRequest | None:
    """Return the operations and sizes (`BenchRequest`) that a recorded `hpccoll bench` requested; None if not known."""
    from hpccoll.cli.bench import DEFAULT_PLACE, PLACES, bench
    from hpccoll.report.findings import BenchRequest
    from hpccoll.units import list_message_sizes

    words = run.command.split()
    if words[:2] != ["hpccoll", "bench"]:
        return None
    try:
        options = bench.make_context("bench", words[2:], resilient_parsing=True).params
        # Versions of hpccoll that wrote no field `sizes` measured from 8 bytes on, both in and out of place, by
        # default.
        recorded = run.record.get("sizes")
        limits = options["min_bytes"] or "8", options["max_bytes"], int(options["factor"])
        sizes = tuple(recorded or list_message_sizes(*limits))
        places = PLACES[options["place"] or (DEFAULT_PLACE if recorded and not options["full"] else "both")]
        itemsize = 2 if options["dtype"] == "bfloat16" else np.dtype(options["dtype"]).itemsize
        operations = tuple(options["operations"] or ("all_reduce",))
        return BenchRequest(operations, sizes, places, itemsize)
    except (click.ClickException, HpccollError, KeyError, TypeError, ValueError):
        return None  # the command of another version, or with a path that contains blanks


def _print_findings(results: Results, findings: Sequence[Finding], output: str) -> None:
    """Print the findings and the skipped files, then the name of the page, `output`, its size and its contents."""
    indent = " " * 9
    width = find_output_width() or _WIDTH
    fill = partial(textwrap.fill, width=width, break_on_hyphens=False)  # does not split options at hyphens
    for finding in findings:
        severity = finding.severity.name.lower()
        print(fill(f"{severity:<8} {finding.area}: {finding.found}", subsequent_indent=indent))
        for name, text in (("evidence", finding.evidence), ("remedy", finding.remedy)):
            if text:
                short = textwrap.shorten(text, _MAX_TEXT, placeholder=" ...")
                print(fill(f"{name}: {short}", initial_indent=indent, subsequent_indent=indent + "  "))
    for reason in results.foreign:
        click.echo(f"# skipped: {reason}", err=True)
    rows, pairs = len(results.rows), results.pair_count
    size = Path(output).stat().st_size
    counts = f"{format_count(len(findings), 'finding')} on {format_count(rows, 'measurement')}"
    print_text(f"{output}: {counts} and {format_count(pairs, 'node pair')}, {size / 1e3:.0f} kB")
