"""`hpccoll preflight`: measure every pair of nodes and every node, and name slow or broken nodes and links.

The output has two `preflight_pair` records per pair of nodes (one per direction), then one `preflight_node` record per
node, then one `preflight_summary` record. hpccoll/records/nodes.py documents the fields of preflight records, and
hpccoll/preflight/faults.py defines when a node or link counts as slow.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import click

from hpccoll.atomic_files import write_atomically
from hpccoll.cli.failure import fail_alike
from hpccoll.cli.options import option, take_options
from hpccoll.cli.output import STDOUT, json_field, open_json_lines, print_table, print_text, require_outputs_writable
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_serial_run_record
from hpccoll.errors import CommunicationError, UsageError
from hpccoll.preflight.coordinator import Coordinator, MeasurementOptions, run_worker
from hpccoll.preflight.faults import find_faults, list_excluded_nodes
from hpccoll.preflight.results import PreflightResults
from hpccoll.preflight.tcp_reachability import check_reachability, read_slurm_step
from hpccoll.records import FaultEntry, PreflightSummaryRecord
from hpccoll.runtime import job
from hpccoll.units import GB, format_count, format_size, parse_size

MAX_TABLE_NODES = 12  # with more nodes, no table of pairs is printed
SLOW, BROKEN = 1, CommunicationError.exit_status


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """The options of `hpccoll preflight`, which this class declares for click and whose values it holds."""

    sweeps: int = option(
        "--sweeps", type=click.IntRange(1), default=5, show_default=True, help="How often to measure each pair."
    )
    size: str | None = option(
        "--size", help="Size of the long message; default: what the median link transfers in about 20 ms."
    )
    threshold: float = option(
        "--threshold",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.6,
        show_default=True,
        help="A value is slow if it is below this fraction of the median of the others.",
    )
    limit: float = option(
        "--limit",
        type=click.FloatRange(0, min_open=True),
        default=20.0,
        show_default=True,
        help="Seconds after which a message counts as lost.",
    )
    ranks_as_nodes: bool = option(
        "--ranks-as-nodes", is_flag=True, help="Treat every rank as a node, to try preflight on one machine."
    )
    reach: bool = option(
        "--reach", is_flag=True, help="Only check TCP between all nodes, without MPI; needs srun, one task per node."
    )
    save: bool = option(
        "--save", is_flag=True, help="Store the rates of the links, by which auto weights an all_reduce."
    )
    exclude_file: str | None = option(
        "--exclude-file", metavar="FILE", help="Write the --exclude= option to FILE; empty if there is no fault."
    )
    json_file: str | None = json_field(all_ranks=True)


@click.command(epilog="Example: srun --nodes=4 --ntasks-per-node=1 hpccoll preflight --json preflight.jsonl")
@take_options(PreflightOptions)
def preflight(options: PreflightOptions) -> int:
    """Measure every pair of nodes and every single node, and name the nodes and links that are slow or broken.

    Only the first rank of each node takes part. Several pairs are measured at a time, but no node is in two pairs at a
    time. The last line of the output is an --exclude= option for sbatch. Exit status: 0 no fault; 1 something is slow;
    4 something is broken.
    """
    if options.reach and not options.save:
        results = check_reachability(*read_slurm_step(os.environ), options.limit)
        return 0 if results is None else _report_reachability(results, options)
    if options.save and (options.reach or options.ranks_as_nodes):
        raise UsageError("--save stores the rates of links between nodes; leave out --reach and --ranks-as-nodes")
    nbytes = parse_size(options.size) if options.size is not None else None
    if nbytes == 0:
        raise UsageError("--size 0 measures no link; leave it out, or give a size such as --size 4M")
    measurement = MeasurementOptions(options.sweeps, nbytes, options.limit, options.ranks_as_nodes)
    world, failure = job.get_world(), job.load_mpi().Exception
    if world.rank != 0:
        run_worker(world, measurement, failure)
        return 0
    try:
        coordinator = _check_outputs(Coordinator(world, measurement, failure), options)
    except UsageError as error:  # the other ranks have ended, so that no collective can share the error
        return fail_alike(error.exit_status, f"Error: {error}")
    status = _get_exit_status(_measure(coordinator, options))
    _save_link_rates(coordinator.results if options.save and status != BROKEN else None)
    coordinator.end_workers()
    if not coordinator.can_finalize:  # a lost message is still in flight, so MPI_Finalize would hang
        job.abort(status)
    return status


def _save_link_rates(results: PreflightResults | None) -> None:
    """Store the measured rates of the nodes' links where `auto` reads them; print the file's name to standard error.

    If `results` is None, nothing is stored.
    """
    from hpccoll.selection.link_rates import LINKS_VARIABLE, find_links_path, save_links

    if results is None:
        return
    path = find_links_path()
    if path is None:
        click.echo(f"# {LINKS_VARIABLE} is off: the rates of links are not stored", err=True)
        return
    save_links(path, results.compute_link_rates())
    click.echo(f"# {path}: stored the rates of {format_count(len(results.nodes), 'link')}", err=True)


def _check_outputs(coordinator: Coordinator, options: PreflightOptions) -> Coordinator:
    """Return `coordinator`, the object of rank 0 that commands the other ranks, if the output files are writable.

    If an output file cannot be written, the other ranks are told to end before this function raises UsageError.
    """
    try:
        require_outputs_writable({"--exclude-file": options.exclude_file, "--json": options.json_file})
    except UsageError:
        coordinator.end_workers()
        raise
    return coordinator


def _report_reachability(results: PreflightResults, options: PreflightOptions) -> int:
    """Write and print the results of --reach, a check of TCP connections between nodes; return the exit status."""
    faults = find_faults(results, options.threshold)
    with open_json_lines(options.json_file) as lines:
        lines.write(make_serial_run_record())
        lines.write(_make_summary(results, options.threshold, faults))
    _write_exclude_file(options.exclude_file, faults)
    if faults and options.json_file != STDOUT:
        _print_faults(faults)
    return _get_exit_status(faults)


def _measure(coordinator: Coordinator, options: PreflightOptions) -> list[FaultEntry]:
    """Measure all nodes and pairs of nodes, on rank 0, while the other ranks carry out its commands; return the faults.

    Writes the records and the file of --exclude-file, and prints tables and faults. If the measurement is interrupted,
    the records of the samples so far are still written.
    """
    results = coordinator.results
    with open_json_lines(options.json_file) as lines:
        if options.json_file is not None:
            lines.write(_make_run_record(results))
        try:
            with show_progress("rounds", coordinator.steps) as advance:
                coordinator.measure_all(advance)
            coordinator.remeasure_suspects(options.threshold)
        finally:
            for record in _make_records(results):
                lines.write(record)
        faults = find_faults(results, options.threshold)
        lines.write(_make_summary(results, options.threshold, faults))
    _write_exclude_file(options.exclude_file, faults)
    if options.json_file != STDOUT:
        _print_results(results, faults)
    return faults


def _make_run_record(results: PreflightResults) -> dict[str, Any]:
    """Return the record of kind `run`: command, versions, and the measured nodes as hosts. Makes no MPI call."""
    record = make_serial_run_record()
    versions = job.collect_versions()
    return record | {
        "versions": {name: versions.get(name) for name in record["versions"]},
        "hosts": list(results.nodes),
        "nodes": len(results.nodes),
        "ranks": len(results.nodes),
        "commit": job.find_commit(),
    }


def _format_exclude_option(faults: list[FaultEntry]) -> str:
    """Return sbatch's option --exclude= with the nodes that have `faults`, as a line; "" if there is no fault."""
    return f"--exclude={','.join(list_excluded_nodes(faults))}\n" if faults else ""


def _write_exclude_file(exclude_file: str | None, faults: list[FaultEntry]) -> None:
    """Write sbatch's option --exclude= to `exclude_file`, an empty file without faults; write nothing if it is None."""
    if exclude_file is not None:
        write_atomically(exclude_file, _format_exclude_option(faults))


def _get_exit_status(faults: list[FaultEntry]) -> int:
    """Return the exit status: 0 without faults, 1 if a node or link is slow, 4 if one is broken."""
    return max((BROKEN if fault.ratio is None else SLOW for fault in faults), default=0)


def _make_records(results: PreflightResults) -> list[dict[str, Any]]:
    """Return the records of all pairs and nodes (`preflight_pair`, `preflight_node`), as dicts.

    The list is empty until all pairs were measured once.
    """
    if not results.nbytes:
        return []
    pairs = [link.to_record(results.nodes) for link in results.iter_directed_links()]
    return pairs + [results.make_node_record(node) for node in range(len(results.nodes))]


def _make_summary(results: PreflightResults, threshold: float, faults: list[FaultEntry]) -> dict[str, Any]:
    """Return the summary record as a dict with nodes, the value of --threshold, faults, and nodes to exclude."""
    excluded = tuple(list_excluded_nodes(faults))
    return PreflightSummaryRecord(results.nodes, threshold, tuple(faults), excluded).as_dict()


def _print_results(results: PreflightResults, faults: list[FaultEntry]) -> None:
    """Print tables of the measured nodes and pairs, then the faults and sbatch's option --exclude=.

    With more than MAX_TABLE_NODES nodes, there is no table of pairs.
    """
    names = results.nodes
    if len(names) <= MAX_TABLE_NODES:
        _print_node_pair_tables(results)
    rows = []
    for node, name in enumerate(names):
        speed = results.compute_median_speed(node)
        cells = [f"{speed.copy_bytes_per_s / GB:.2f}", f"{speed.operations_per_s / 1e9:.2f}"] if speed else ["-", "-"]
        rows.append([name, *cells, results.lost.get(node, "")])
    rates = ("copy GB/s", "Gsin/s")
    print_table("Nodes: rate of memory copies, and of sines computed", ("node", *rates, ""), rows, rates)
    print()
    if faults:
        _print_faults(faults)
    else:
        pairs = len(names) * (len(names) - 1) // 2
        print_text(f"no slow or broken node or link: {len(names)} nodes, {format_count(pairs, 'pair')}")
    sys.stdout.flush()


def _print_faults(faults: list[FaultEntry]) -> None:
    """Print each fault with its remedy, then sbatch's option --exclude= with the faulty nodes."""
    for fault in faults:
        print_text(f"{fault.found}\n    remedy: {fault.remedy}")
    print(_format_exclude_option(faults), end="", flush=True)


def _print_node_pair_tables(results: PreflightResults) -> None:
    """Print a table of bandwidths and one of latencies, with a row per sending and a column per receiving node."""
    names = results.nodes
    rates = {(source, dest): "-" for source in names for dest in names}
    latencies = dict(rates)
    for link in results.iter_directed_links():
        key, rate, latency = (names[link.source], names[link.destination]), link.bytes_per_s, link.latency_seconds
        rates[key] = "broken" if rate is None else f"{rate / GB:.3g}"
        latencies[key] = "broken" if rate is None or latency is None else f"{latency * 1e6:.1f}"
    for title, cells in (
        (f"Bandwidth of {format_size(results.nbytes)} in GB/s, from row to column", rates),
        ("Latency in us, half a round trip that the row starts", latencies),
    ):
        rows = [[name, *(cells[name, other] for other in names)] for name in names]
        print_table(title, ("", *names), rows, names)
        print()
