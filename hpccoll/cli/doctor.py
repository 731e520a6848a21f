"""`hpccoll doctor`: check MPI, launcher, cores, memory, clocks, networks and GPUs, and print findings with remedies.

A record of kind `finding` has `area`, `severity` (ok, note, warning, problem), `found`, `evidence`, `remedy` (null if
there is nothing to fix), `provides` (the capabilities for `--require` that the finding proves) and `hosts` (empty for
the job as a whole, or with a single host).
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpccoll.cli.output import (
    STDOUT,
    get_launched_rank,
    is_printing_rank,
    json_option,
    open_json_lines,
    require_outputs_writable,
)
from hpccoll.cli.run_record import make_run_record, make_serial_run_record
from hpccoll.doctor import Finding
from hpccoll.doctor.checks import HostReport, check_host, check_job
from hpccoll.doctor.mpi_job import MpiJob, describe_unlaunched_process, start_mpi_job
from hpccoll.doctor.requirements import REQUIRABLE, require_capabilities
from hpccoll.doctor.shared_memory import remove_stale_files
from hpccoll.errors import UnavailableError, UnknownNameError
from hpccoll.processes import joint_failure
from hpccoll.text_table import find_output_width

SHM = Path("/dev/shm")  # noqa: S108 - the memory file system, not a place for temporary files
MPI_START_LIMIT_S = 60.0
POLL_S = 0.02
MAX_WIDTH = 120
MAX_EVIDENCE = 200  # characters of evidence shown without -v


def _parse_requirements(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return the names in `value`, the comma-separated list of --require; raise click.BadParameter for an unknown one.

    The function is a callback of click.
    """
    names = tuple(name.strip().replace("-", "_") for name in (value or "").split(",") if name.strip())
    for name in names:
        if name not in REQUIRABLE:
            raise click.BadParameter(str(UnknownNameError("requirement", name, list(REQUIRABLE))))
    return names


@click.command(epilog="Example: mpirun -n 4 hpccoll doctor --require cuda,ipc")
@click.option(
    "--require",
    "required",
    metavar="NAMES",
    callback=_parse_requirements,
    help=f"End with status 3 unless each of these works: a comma-separated list of {','.join(REQUIRABLE)}.",
)
@click.option(
    "-v", "--verbose", "--all", "verbose", is_flag=True, help="Show all findings, with evidence and remedies."
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Time limit in seconds for each process that a check starts.",
)
@json_option(all_ranks=True)
@click.option("--remove-stale", is_flag=True, help="First remove files of ended jobs from /dev/shm.")
def doctor(required: tuple[str, ...], verbose: bool, limit_s: float, remove_stale: bool, json_file: str | None) -> int:
    """Check this machine and job, and print each problem and warning with its evidence and remedy.

    The command runs alone or in a job of mpirun or srun; in a job it also checks all hosts and the binding of ranks to
    cores. Anything that may crash or hang (MPI, CUDA, torch) runs in a process of its own. Nothing on the machine
    is changed or removed, unless --remove-stale is given.
    """
    is_launched = get_launched_rank() is not None
    job = start_mpi_job(os.environ, MPI_START_LIMIT_S) if is_launched else describe_unlaunched_process(os.environ)
    if job.world is None and not is_printing_rank():
        return 0  # MPI did not connect the ranks: only the first prints
    _require_writable(job, json_file)
    hosts = _check_hosts(job, limit_s, remove_stale)
    findings: list[Finding] = []
    missing: str | None = None
    if hosts:
        findings = check_job(hosts, job, limit_s)
        try:
            require_capabilities(required, findings, len(hosts))
        except UnavailableError as error:
            missing = str(error)
    run: dict[str, Any] = {}
    if json_file is not None:
        # The record names no devices, because the CUDA driver may hang in this process; the findings name the devices.
        run = make_serial_run_record() if job.world is None else make_run_record(job.world, devices=())
    if hosts:
        _write_report(findings, run, verbose, json_file)
    if job.world is not None:
        missing = job.world.bcast(missing)
    if missing is None:
        return 0
    if is_printing_rank():
        print(f"Error: {missing}", file=sys.stderr)
    return UnavailableError.exit_status  # all ranks return it, because an abort would leave shared memory behind


def _require_writable(job: MpiJob, json_file: str | None) -> None:
    """Raise UsageError on all ranks if rank 0 cannot write the file of --json; `json_file` may be None. Collective."""
    files = {"--json": json_file}
    if job.world is None:
        require_outputs_writable(files)
    else:
        joint_failure.run_on_first_rank(job.world, lambda: require_outputs_writable(files))


def _check_hosts(job: MpiJob, limit_s: float, remove_stale: bool) -> list[HostReport]:
    """Check each host by its first rank; return the reports of all hosts on rank 0, [] on other ranks. Collective.

    Args:
        limit_s: time limit in seconds of each process that a check starts.
        remove_stale: whether to remove files of ended jobs from /dev/shm first.
    """
    rank = job.world.rank if job.world is not None else 0
    on_host = [info for info in job.ranks if info.host == job.ranks[rank].host]
    report = None
    if on_host[0].rank == rank:
        removed = (remove_stale_files(SHM),) if remove_stale else ()
        report = check_host(on_host, limit_s)
        report = replace(report, findings=(*removed, *report.findings))
    if job.world is None:
        return [report] if report is not None else []
    barrier = job.world.Ibarrier()
    while not barrier.Test():  # waiting inside MPI would spin on the cores that are being checked
        time.sleep(POLL_S)
    return [host for host in job.world.gather(report) or [] if host is not None]


def _write_report(findings: Sequence[Finding], run: dict[str, Any], verbose: bool, json_file: str | None) -> None:
    """Write `run` (the record of kind `run`) and the findings to `json_file`, and print the findings for people.

    `json_file` is the value of --json: None writes no records, and with `-` only the records are printed.
    """
    with open_json_lines(json_file) as lines:
        if json_file is not None:
            lines.write(run)
            for finding in findings:
                lines.write(finding.make_record().as_dict())
    if json_file == STDOUT:
        return
    width = min(MAX_WIDTH, find_output_width() or MAX_WIDTH)
    for line in format_findings(findings, verbose, width):
        print(line)


def format_findings(findings: Sequence[Finding], verbose: bool, width: int) -> list[str]:
    """Return the findings as lines of text, wrapped at `width` characters, with the counts by severity last.

    Unless `verbose` is set, only problems and warnings are shown, with shortened evidence. Remedies are never wrapped.
    """
    shown = [finding for finding in findings if verbose or finding.severity.name.lower() in ("warning", "problem")]
    lines, area_width = [], max((len(finding.area) for finding in shown), default=0)
    indent = " " * (area_width + 11)
    for finding in shown:
        severity = finding.severity.name.lower()
        hosts = f" [{', '.join(finding.hosts[:4])}{', ...' * (len(finding.hosts) > 4)}]" if finding.hosts else ""
        head = f"{finding.area:<{area_width}}  {severity:<7}  "
        lines += _wrap(head, finding.found + hosts, indent, width)
        short = textwrap.shorten(finding.evidence, MAX_EVIDENCE, placeholder=" ... (-v shows the rest)")
        lines += _wrap(indent, f"evidence: {finding.evidence if verbose else short}", indent, width)
        if finding.remedy:
            lines.append(f"{indent}remedy: {finding.remedy}")  # never wrapped, so that a command can be copied
    counts = Counter(finding.severity.name.lower() for finding in findings)
    totals = [f"{counts[name]} {name}{'s' * (counts[name] != 1)}" for name in ("problem", "warning", "note")]
    hint = "" if verbose or len(shown) == len(findings) else "; -v shows all"
    return [*lines, *[""] * bool(lines), f"{', '.join(totals)}, {counts['ok']} ok{hint}"]


def _wrap(head: str, text: str, indent: str, width: int) -> list[str]:
    """Return `text` wrapped at `width` characters; the first line starts with `head`, the others with `indent`."""
    return textwrap.wrap(
        text,
        max(width, len(indent) + 30),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
