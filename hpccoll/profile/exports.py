"""Writes a profile for other tools: a Perfetto trace, CSV, GOAL, and Chakra execution traces."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpccoll.atomic_files import write_atomically
from hpccoll.errors import UsageError
from hpccoll.plan.drawing.trace import format_events_json
from hpccoll.profile.chakra import encode_execution_trace
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.goal import format_goal

SUFFIXES: Final = {
    ".json": "a trace for ui.perfetto.dev",
    ".csv": "a row per call",
    ".goal": "GOAL, which LogGOPSim reads",
    ".et": "Chakra execution traces, one per rank: NAME.RANK.et",
}
CSV_COLUMNS: Final = (
    "rank", "operation", "method", "file", "line", "function", "nbytes", "communicator", "begin_us", "end_us",
    "wait_us", "transfer_us",
)  # fmt: skip


def export_profile(graph: CallGraph, path: str) -> None:
    """Write the calls of a job to a file, whose suffix is the format.

    Raises:
        UsageError: the suffix is none of SUFFIXES.
    """
    file = Path(path)
    match file.suffix:
        case ".json":
            write_atomically(path, format_perfetto(graph))
        case ".csv":
            write_atomically(path, format_csv(graph))
        case ".goal":
            write_atomically(path, format_goal(graph))
        case ".et":
            for rank in range(graph.profile.size):
                write_atomically(str(file.with_suffix(f".{rank}.et")), encode_execution_trace(graph, rank))
        case suffix:
            valid = ", ".join(f"{known} ({what})" for known, what in SUFFIXES.items())
            raise UsageError(f"--export {path}: {suffix or 'no suffix'} is no format; end the name in {valid}")


def format_perfetto(graph: CallGraph) -> str:
    """Return the calls as Chrome trace JSON, with a track per rank; a call has its waiting as a slice inside."""
    origin = float(graph.start_s.min())
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
        for rank in range(graph.profile.size)
    ]
    for call in np.flatnonzero(graph.site >= 0).tolist():
        where = {"ph": "X", "pid": 0, "tid": int(graph.rank[call])}
        begin_us, end_us = (round(1e6 * (times[call] - origin), 3) for times in (graph.begin_s, graph.end_s))
        site = graph.profile.sites[graph.site[call]]
        args = {"site": f"{site.file}:{site.line}", "function": site.function, "nbytes": int(graph.nbytes[call])}
        name = graph.operations[graph.op[call]]
        events.append({"name": name, **where, "ts": begin_us, "dur": round(end_us - begin_us, 3), "args": args})
        if graph.wait_s[call] > 0:
            late = int(graph.rank[graph.last_needed[call]])
            waited = {"ts": begin_us, "dur": round(1e6 * float(graph.wait_s[call]), 3)}
            events.append({"name": f"wait for rank {late}", **where, **waited})
    return format_events_json({"traceEvents": events, "displayTimeUnit": "ns"})


def format_csv(graph: CallGraph) -> str:
    """Return the calls as CSV, a row each; times are microseconds since the first start of a rank."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    origin = float(graph.start_s.min())
    for call in np.flatnonzero(graph.site >= 0).tolist():
        site = graph.profile.sites[graph.site[call]]
        times = (graph.begin_s[call] - origin, graph.end_s[call] - origin, graph.wait_s[call], graph.transfer_s[call])
        op = int(graph.op[call])
        named = (graph.operations[op], graph.profile.names[op], site.file, site.line, site.function)
        numbers = (int(graph.nbytes[call]), int(graph.comm[call]))
        writer.writerow([int(graph.rank[call]), *named, *numbers, *(f"{1e6 * float(value):.3f}" for value in times)])
    return text.getvalue()
