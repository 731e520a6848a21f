"""Run a script of this folder: parse its options, write its result file, print its table, set its exit status.

Exit status: 0 success; 1 a wrong result or, with --require, a missed requirement; 2 usage error; 3 something requested
is unavailable; 4 the communication failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compare import Bench, Case

from hpccoll.communicator import Communicator
from hpccoll.errors import HpccollError
from hpccoll.failures.fault_tolerance import is_enabled
from hpccoll.measure.results.result_file import RecordWriter, read_records
from hpccoll.records import RunRecord
from hpccoll.runtime import job
from hpccoll.statistics import CONFIDENCE
from hpccoll.units import format_size, parse_size

Result = Case | dict[str, Any]  # a case, or a record of another kind as a dict, whose field `line` the table shows
HEAD = f"{'size':>8} {'calls':>5}  {'case':<22} {'side':<34} {'us a call':>10} {'95 %':<22} {'ratio':>6} 95 %"


def main(doc: str, sizes: str, measure: Callable[[Bench], Iterator[Result]]) -> int:
    """Run a script on every rank and return its exit status.

    Args:
        doc: the script's docstring.
        sizes: message sizes by default, joined by commas.
        measure: yields the results, the same on every rank.
    """
    options = _parse_options(doc, sizes)
    try:
        return _run(options, measure)
    except HpccollError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        job.abort(error.exit_status)
        return error.exit_status


def _parse_options(doc: str, sizes: str) -> argparse.Namespace:
    """Parse the command line of a script; `doc` is its help, `sizes` the default of --sizes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write JSON Lines as rows finish; - for standard output")
    again = "append to the file of an earlier run, without the cases that it has (torch_backend.py)"
    parser.add_argument("--resume", metavar="FILE", help=again)
    stop = "begin no case after so many seconds (torch_backend.py)"
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", default=float("inf"), help=stop)
    parser.add_argument("--sizes", default=sizes, help="message sizes, joined by commas; default %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per case; default %(default)s")
    repeats = "repeat a case, at most this often, while other programs keep cores busy"
    parser.add_argument("--patience", type=int, default=0, help=repeats)
    parser.add_argument("--link-mbit", type=float, default=0.0, help="rate of each node's link in Mbit/s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of turns")
    parser.add_argument("--require", action="store_true", help="exit with status 1 if a requirement is missed")
    return parser.parse_args()


def _run(options: argparse.Namespace, measure: Callable[[Bench], Iterator[Result]]) -> int:
    """Measure on all ranks; rank 0 prints and writes the records. Return the exit status. Collective."""
    world = job.get_world()
    sizes = tuple(parse_size(size) for size in options.sizes.split(","))
    wrong = missed = 0
    with ExitStack() as stack:
        own = stack.enter_context(Communicator(world))
        comm = world.Dup()
        stack.callback(comm.Free)
        name = Path(sys.argv[0]).stem
        finished = world.bcast(_list_finished(options.resume) if comm.rank == 0 else None)
        timing = options.seconds, options.patience, options.seed, options.link_mbit
        bench = Bench(name, comm, own, sizes, *timing, finished, time.monotonic() + options.stop_after)
        launcher = "mpirun --with-ft ulfm" if is_enabled() else "mpirun"
        command = f"{launcher} -n {comm.size} python bench/{name}.py {' '.join(sys.argv[1:])}"
        run = make_run_record(comm, command.strip())
        show: Callable[[str], object] = print if comm.rank == 0 and options.json != "-" else _silent
        keep: Callable[[Mapping[str, Any]], object] = _silent
        is_new = not (options.resume and Path(options.resume).exists())
        if comm.rank == 0:
            keep = stack.enter_context(RecordWriter(options.resume or options.json, resume=bool(options.resume))).write
        if is_new:
            keep(run)
        show(_header(run))
        for result in measure(bench):
            for record in bench.records(result) if isinstance(result, Case) else [result]:
                wrong += record.get("wrong") or 0
                missed += sum(not must["holds"] for must in record.get("musts", ()))
                keep(record)
                show(line(record))
        show(f"# {missed} requirements are missed" if missed else "# all requirements hold")
    return 1 if wrong or (options.require and missed) else 0


def _list_finished(path: str | None) -> frozenset[tuple[str, int]]:
    """Return the cases (name and bytes) in the file of an earlier run; none if there is no such file."""
    if path is None or not Path(path).exists():
        return frozenset()
    records = read_records(path).records
    return frozenset((record["case"], record["nbytes"]) for record in records if record["kind"] == "comparison")


def _silent(_: object) -> None:
    """Do nothing; used on all ranks but 0, because only rank 0 prints and writes."""


def make_run_record(comm: Any, command: str) -> dict[str, Any]:
    """Return the run record of `hpccoll bench` with the processor and the load average; collective."""
    layout = job.detect_layout(comm)
    run = RunRecord.make(
        command=command,
        versions=job.collect_versions(),
        hosts=layout.hosts,
        cores=layout.cores,
        ranks=layout.ranks,
        nodes=layout.nodes,
        devices=(),
        oversubscribed=layout.oversubscribed,
        commit=job.find_commit(),
        start_time=datetime.now(UTC),
    )
    return run.as_dict() | {"processor": _processor(), "load_average": [round(each, 2) for each in os.getloadavg()]}


def _processor() -> str:
    """Return the processor's model name, from /proc/cpuinfo if possible."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _header(run: Mapping[str, Any]) -> str:
    """Return the lines above the table: command, machine, versions, load average and headings."""
    versions, cores = run["versions"], max(run["cores"])
    crowded = ", oversubscribed" if run["oversubscribed"] else ""
    load = " ".join(f"{each:.2f}" for each in run["load_average"])
    return (
        f"# {run['command']}\n"
        f"# {run['processor']}, {cores} cores; {run['ranks']} ranks{crowded}; {versions['mpi']}, "
        f"mpi4py {versions['mpi4py']}, NumPy {versions['numpy']}, Python {versions['python']}\n"
        f"# load average before the run: {load}\n{HEAD}"
    )


def line(record: Mapping[str, Any]) -> str:
    """Return a record as a row of the table; a ratio above 1x means faster than the baseline, a case's first row."""
    if record["kind"] != "comparison":
        return str(record["line"])
    times, ratio = record["time_us"], record["ratio"]
    cells = [
        f"{format_size(record['nbytes']):>8} {record['batch']:>5}  {record['case']:<22} {record['side']:<34}",
        f"{times['p50']:>10.2f} {_interval(times['p50_low'], times['p50_high']):<22}",
        " baseline" if ratio is None else f"{ratio['value']:>5.2f}x {_interval(ratio['low'], ratio['high'])}",
    ]
    if ratio is not None and ratio["coverage"] < CONFIDENCE:
        cells.append("?")
    cells += [
        f" {must['text']}: {must['ratio']['value']:.2f}x, {'holds' if must['holds'] else 'MISSED'}"
        for must in record["musts"]
    ]
    if record["wrong"]:
        cells.append(f" {record['wrong']} WRONG")
    if ratio is None:
        cells.append(f" (others used {record['others_cores']:.2f} cores)")
    return " ".join(cells)


def _interval(low: float, high: float) -> str:
    """Return `[low,high]`, rounded for the table."""
    digits = 2 if high < 1e4 else 0
    return f"[{low:.{digits}f},{high:.{digits}f}]"
