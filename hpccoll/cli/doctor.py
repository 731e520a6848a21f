"""`hpccoll doctor`: looks at MPI, launcher, cores, memory, clocks, networks and GPUs, and says what to mend.

The record of kind `finding`, one a finding: `area`, `severity` (ok, note, warning, problem), `found`, `evidence`,
`remedy` (null where there is nothing to mend), `provides` (what of `--require` it shows to work) and `hosts` (where it
was found; empty for the job as a whole, or where there is one host).
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import STDOUT, get_launched_rank, is_printing_rank, open_json_lines
from hpccoll.doctor.checks import REQUIRABLE
from hpccoll.errors import UnavailableError, UnknownNameError

if TYPE_CHECKING:
    from hpccoll.doctor.finding import Finding
    from hpccoll.doctor.mpi_job import Job

MEETING_LIMIT_S = 60.0
POLL_S = 0.02
WIDEST, LONG = 120, 500


def _names(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
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
    callback=_names,
    help=f"End with status 3 unless these are shown to work: some of {','.join(REQUIRABLE)}.",
)
@click.option("--all", "every", is_flag=True, help="Show the evidence also where all is well.")
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Seconds for each thing that is tried in a process of its own.",
)
@click.option("--json", "target", metavar="FILE", help="Write one JSON record a line; - for standard output.")
def doctor(required: tuple[str, ...], every: bool, limit: float, target: str | None) -> int:
    """Look at what this machine and job have, and say what to mend.

    Runs alone, and under mpirun or srun, where the ranks' binding and hosts are looked at, too. What may crash or hang
    (MPI, CUDA, torch) is tried in processes of its own. Nothing is changed or removed.
    """
    from hpccoll.doctor import checks, mpi_job

    met = (
        mpi_job.met(os.environ, MEETING_LIMIT_S)
        if get_launched_rank() is not None
        else mpi_job.not_launched(os.environ)
    )
    if met.world is None and not is_printing_rank():
        return 0  # each rank is a job of its own: the first one says so
    hosts = _hosts(met, limit)
    findings: list[Finding] = []
    missing: str | None = None
    if hosts:
        findings = checks.everything(hosts, met, limit)
        try:
            checks.require(required, findings, len(hosts))
        except UnavailableError as error:
            missing = str(error)
    run = _run_record(met) if target is not None else {}
    if hosts:
        _report(findings, run, every, target)
    if met.world is not None:
        missing = met.world.bcast(missing)
    if missing is None:
        return 0
    if is_printing_rank():
        print(f"Error: {missing}", file=sys.stderr)
    return UnavailableError.exit_status  # all ranks know: none needs to be aborted, which leaves shared memory behind


def _hosts(met: Job, limit: float) -> list[Any]:
    """Let the first rank of each host look at it; return what they found on rank 0, nothing elsewhere."""
    from hpccoll.doctor import checks

    me = met.world.rank if met.world is not None else 0
    here = [each for each in met.ranks if each.host == met.ranks[me].host]
    mine = checks.this_host(here, limit) if here[0].rank == me else None
    if met.world is None:
        return [mine]
    done = met.world.Ibarrier()
    while not done.Test():  # whoever waits inside MPI spins, on the cores that are looked at
        time.sleep(POLL_S)
    told = met.world.gather(mine)
    return [host for host in told or [] if host is not None]


def _run_record(met: Job) -> dict[str, Any]:
    """Return the record of kind `run`. Collective where MPI runs."""
    from hpccoll.cli.run_record import make_serial_run_record

    if met.world is None:
        return make_serial_run_record()
    from datetime import UTC, datetime

    from hpccoll.measure.record import RunRecord
    from hpccoll.runtime import job

    where = job.detect_layout(met.world)
    return RunRecord(
        command=" ".join(["hpccoll", *sys.argv[1:]]),
        versions=met.ranks[met.world.rank].versions,
        hosts=where.hosts,
        cores=where.cores,
        ranks=where.ranks,
        nodes=where.nodes,
        devices=(),  # a driver is asked in a process of its own only; the findings name the devices
        oversubscribed=where.oversubscribed,
        commit=job.find_commit(),
        start_time=datetime.now(UTC),
    ).as_dict()


def _report(findings: Sequence[Finding], run: dict[str, Any], every: bool, target: str | None) -> None:
    """Write the records, and print the table unless the records went there."""
    with open_json_lines(target) as lines:
        if target is not None:
            lines.write(run)
            for finding in findings:
                lines.write(finding.as_dict())
    if target == STDOUT:
        return
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    for line in table(findings, every, width):
        print(line)


def table(findings: Sequence[Finding], every: bool, width: int) -> list[str]:
    """Return the lines for people: one a finding, below it evidence and remedy, where there is something to mend.

    Args:
        findings: in the order in which they are shown.
        every: whether evidence is shown of all of them.
        width: columns that a line may take.
    """
    lines, first = [], max((len(finding.area) for finding in findings), default=0)
    indent = " " * (first + 11)
    for finding in findings:
        name = finding.severity.name.lower()
        where = f" [{', '.join(finding.hosts[:4])}{', ...' * (len(finding.hosts) > 4)}]" if finding.hosts else ""
        lines += _wrapped(f"{finding.area:<{first}}  {name:<7}  ", finding.found + where, indent, width)
        if every or name in ("warning", "problem"):
            lines += _wrapped(indent, f"evidence: {_cut(finding.evidence, every)}", indent, width)
        if finding.remedy and (every or name != "ok"):
            lines.append(f"{indent}remedy: {finding.remedy}")  # one line: a command must survive being copied
    counts = Counter(finding.severity.name.lower() for finding in findings)
    said = [f"{counts[name]} {name}{'s' * (counts[name] != 1)}" for name in ("problem", "warning", "note")]
    return [*lines, "", f"{', '.join(said)}, {counts['ok']} ok"]


def _cut(evidence: str, every: bool) -> str:
    return (
        evidence
        if every or len(evidence) <= LONG
        else f"{evidence[:LONG].rpartition(' ')[0]} ... (--all shows the rest)"
    )


def _wrapped(head: str, text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, len(indent) + 30),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
