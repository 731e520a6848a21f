"""`hpccoll preflight`: measures every pair of nodes and every node, and names what is slow or broken.

The records, in this order: `preflight_pair`, two for each pair of nodes (`source`, `destination`, `nbytes`, `repeats`,
`latency_us`, `bandwidth_GBps`, the best of `transfer_us`, and `broken`: why there is none); `preflight_node`, one a
node (`node`, `repeats`, `copy_GBps`, `compute_Gsin_per_s`, `lost`); and one `preflight_summary` (`nodes`, `threshold`,
`faults`, `exclude`). hpccoll/preflight/faults.py says what counts as slow.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import SCHEMA, STDOUT, open_json_lines, print_table
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_serial_run_record
from hpccoll.errors import CommunicationError, UsageError
from hpccoll.measure.output_file import require_writable
from hpccoll.units import GB, format_size, parse_size

if TYPE_CHECKING:
    from hpccoll.preflight.coordinator import Coordinator
    from hpccoll.preflight.faults import Fault
    from hpccoll.preflight.results import PreflightResults

MOST_IN_A_TABLE = 12  # nodes whose pairs a table still shows
FOUND, BROKEN = 1, CommunicationError.exit_status


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    sweeps: int
    size: str | None
    threshold: float
    limit: float
    ranks_as_nodes: bool
    reach: bool
    exclude_file: str | None
    target: str | None


@click.command(epilog="Example: srun --nodes=4 --ntasks-per-node=1 hpccoll preflight --json preflight.jsonl")
@click.option("--sweeps", type=click.IntRange(1), default=5, show_default=True, help="Times a pair is measured.")
@click.option("--size", help="The long message; default what a typical link here carries in 20 ms.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.6,
    show_default=True,
    help="Slow is below this fraction of the median of the others.",
)
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Seconds after which a message counts as lost.",
)
@click.option("--ranks-as-nodes", is_flag=True, help="Take every rank for a node: to try it on one machine.")
@click.option("--reach", is_flag=True, help="Only try TCP between all nodes, without MPI: srun, one task a node.")
@click.option("--exclude-file", metavar="FILE", help="Write the --exclude= there, too; empty where all is well.")
@click.option("--json", "target", metavar="FILE", help="Write one JSON record a line; - for standard output.")
def preflight(**given: Any) -> int:
    """Measure every pair of nodes and every node alone, and name the links and nodes that are slow or broken.

    The first rank of each node takes part. Pairs are measured in rounds, each node in one pair of a round. The last
    line for people is an --exclude= for sbatch. Exit status: 0 all is well; 1 something is slow; 4 something is broken.
    """
    from hpccoll.preflight.coordinator import Coordinator, MeasurementOptions, run_worker
    from hpccoll.runtime import job

    options = Options(**given)
    if options.reach:
        return _reach(options)
    nbytes = parse_size(options.size) if options.size is not None else None
    if nbytes == 0:
        raise UsageError("--size 0 measures no link; leave it out, or name a size such as 4M")
    wishes = MeasurementOptions(options.sweeps, nbytes, options.limit, options.ranks_as_nodes)
    world, failure = job.get_world(), job.load_mpi().Exception
    if world.rank != 0:
        run_worker(world, wishes, failure)
        return 0
    conductor = Coordinator(world, wishes, failure)
    status = max((_status(fault) for fault in _conduct(conductor, options)), default=0)
    conductor.end()
    if not conductor.clean:  # messages are under way that will never arrive: MPI could not end by itself
        job.abort(status)
    return status


def _reach(options: Options) -> int:
    """Find out which nodes reach each other, before MPI has to; node 0 tells, and only of what is broken."""
    from hpccoll.preflight import tcp_reachability
    from hpccoll.preflight.faults import find_faults

    hosts, me, port = tcp_reachability.from_slurm(os.environ)
    survey = tcp_reachability.survey(hosts, me, port, options.limit)
    if survey is None:
        return 0
    found = find_faults(survey, options.threshold)
    with open_json_lines(options.target) as lines:
        lines.write(make_serial_run_record())
        lines.write(_summary(survey, options.threshold, found))
    if options.exclude_file is not None:
        Path(options.exclude_file).write_text(_exclude(found), encoding="utf-8")
    if found and options.target != STDOUT:
        _tell(found)
    return BROKEN if found else 0


def _conduct(conductor: Coordinator, options: Options) -> list[Fault]:
    """Measure, write what was found, and return what is wrong; a run that is cut short writes what it has."""
    from hpccoll.preflight.faults import find_faults

    survey = conductor.survey
    with open_json_lines(options.target) as lines:
        if options.exclude_file is not None:
            require_writable(options.exclude_file, "--exclude-file")
        if options.target is not None:
            lines.write(_run_record(survey))
        try:
            with show_progress("rounds", conductor.steps) as advance:
                conductor.run(advance)
            conductor.recheck(options.threshold)
        finally:
            for record in _measured(survey):
                lines.write(record)
        found = find_faults(survey, options.threshold)
        lines.write(_summary(survey, options.threshold, found))
    if options.exclude_file is not None:
        Path(options.exclude_file).write_text(_exclude(found), encoding="utf-8")
    if options.target != STDOUT:
        _show(survey, found)
    return found


def _run_record(survey: PreflightResults) -> dict[str, Any]:
    from hpccoll.runtime import job

    here = make_serial_run_record()
    versions = {name: job.collect_versions().get(name) for name in here["versions"]}
    return here | {
        "versions": versions,
        "hosts": list(survey.nodes),
        "nodes": len(survey.nodes),
        "ranks": len(survey.nodes),
        "commit": job.find_commit(),
    }


def _exclude(found: list[Fault]) -> str:
    from hpccoll.preflight.faults import choose_excluded

    return f"--exclude={','.join(choose_excluded(found))}\n" if found else ""


def _status(fault: Fault) -> int:
    return BROKEN if fault.ratio is None else FOUND


def _measured(survey: PreflightResults) -> list[dict[str, Any]]:
    if not survey.nbytes:
        return []  # only connections were made so far
    pairs = [each.record(survey.nodes) for each in survey.directions()]
    return pairs + [survey.node_record(node) for node in range(len(survey.nodes))]


def _summary(survey: PreflightResults, threshold: float, found: list[Fault]) -> dict[str, Any]:
    from hpccoll.preflight.faults import choose_excluded

    return {
        "schema": SCHEMA,
        "kind": "preflight_summary",
        "nodes": list(survey.nodes),
        "threshold": threshold,
        "faults": [fault.as_dict() for fault in found],
        "exclude": choose_excluded(found),
    }


def _show(survey: PreflightResults, found: list[Fault]) -> None:
    """Print for people: pairs and nodes as tables, what is wrong in words, and the option that leaves it out."""
    names = survey.nodes
    if len(names) <= MOST_IN_A_TABLE:
        _show_pairs(survey)
    rows = []
    for node, name in enumerate(names):
        speed = survey.speed(node)
        cells = [f"{speed.copy_bytes_per_s / GB:.2f}", f"{speed.operations_per_s / 1e9:.2f}"] if speed else ["-", "-"]
        rows.append([name, *cells, survey.lost.get(node, "")])
    print_table(
        "Nodes: memory copied, and sines computed", ("node", "copy GB/s", "Gsin/s", ""), rows, ("copy GB/s", "Gsin/s")
    )
    print()
    if found:
        _tell(found)
    else:
        print(f"all links and nodes are alike: {len(names)} nodes, {len(names) * (len(names) - 1) // 2} pairs")
    sys.stdout.flush()


def _tell(found: list[Fault]) -> None:
    for fault in found:
        print(f"{fault.found}\n    remedy: {fault.remedy}")
    print(_exclude(found), end="", flush=True)


def _show_pairs(survey: PreflightResults) -> None:
    names = survey.nodes
    rates = {(name, other): "-" for name in names for other in names}
    times = dict(rates)
    for each in survey.directions():
        key, rate, latency = (names[each.source], names[each.destination]), each.bytes_per_s, each.latency_seconds
        rates[key] = "broken" if rate is None else f"{rate / GB:.3g}"
        times[key] = "broken" if rate is None or latency is None else f"{latency * 1e6:.1f}"
    for title, cells in (
        (f"Bandwidth of {format_size(survey.nbytes)} in GB/s, from row to column", rates),
        ("Latency in us, half a round trip begun by the row", times),
    ):
        rows = [[name, *(cells[name, other] for other in names)] for name in names]
        print_table(title, ("", *names), rows, names)
        print()
