"""Writes a recorded job for other tools: a Perfetto trace, CSV, GOAL, and Chakra execution traces."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

import numpy as np

from hpccoll.atomic_files import write_atomically
from hpccoll.errors import UsageError
from hpccoll.plan.drawing.trace import format_trace_json
from hpccoll.plan.simulation.timeline import Slice, Timeline
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
    """Write the calls of a recorded job to `path` in the format of its suffix; `.et` gives NAME.RANK.et per rank.

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
    """Return the calls of a recorded job as Chrome trace JSON: a track per rank, slices for calls and their waiting."""
    begin_us, end_us = (1e6 * (times - graph.start_s.min()) for times in (graph.begin_s, graph.end_s))
    slices = []
    for call in np.flatnonzero(graph.site >= 0).tolist():
        rank, begin, site = int(graph.rank[call]), float(begin_us[call]), graph.profile.sites[graph.site[call]]
        args = {"site": f"{site.file}:{site.line}", "function": site.function, "nbytes": int(graph.nbytes[call])}
        slices.append(Slice(rank, graph.operations[graph.op[call]], begin, float(end_us[call]) - begin, args))
        if graph.wait_s[call] > 0:
            late = int(graph.rank[graph.last_needed[call]])
            slices.append(Slice(rank, f"wait for rank {late}", begin, 1e6 * float(graph.wait_s[call]), {}))
    name = " ".join(graph.profile.argv)
    return format_trace_json(Timeline(name, graph.profile.size, "recorded", tuple(slices)))


def format_csv(graph: CallGraph) -> str:
    """Return the calls of a recorded job as CSV: a row per call, with microseconds since the start of the job."""
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
