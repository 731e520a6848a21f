"""A timeline as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open: a track a rank, arrows between.

Times are microseconds. Source: "Trace Event Format", The Chromium Project: complete events (X), flow events (s, f) and
metadata (M).
"""

from __future__ import annotations

import json
from typing import Any

from hpccoll.plan.simulation.timeline import Arrow, Slice, Timeline

_DIGITS = 4  # of a microsecond


def make_trace(timeline: Timeline) -> dict[str, Any]:
    """Return `timeline` as the object that a trace file holds."""
    events = [_named("process_name", 0, timeline.name)]
    events += [_named("thread_name", rank, f"rank {rank}") for rank in range(timeline.ranks)]
    events += [_named("thread_sort_index", rank, rank) for rank in range(timeline.ranks)]
    events += [_complete(each) for each in timeline.slices]
    events += [event for number, arrow in enumerate(timeline.arrows) for event in _flow(number, arrow)]
    other = {"clock": timeline.clock, "ranks": timeline.ranks, "duration_us": round(timeline.duration_us, _DIGITS)}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def format_trace_json(timeline: Timeline) -> str:
    """Return `timeline` as the text of a trace file, one event a line."""
    whole = make_trace(timeline)
    events = ",\n".join(json.dumps(event) for event in whole.pop("traceEvents"))
    rest = json.dumps(whole)[1:]
    return f'{{"traceEvents": [\n{events}\n], {rest}\n'


def _named(what: str, rank: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if what.endswith("index") else "name"
    return {"name": what, "ph": "M", "pid": 0, "tid": rank, "args": {key: value}}


def _complete(each: Slice) -> dict[str, Any]:
    start, stop = round(each.start_us, _DIGITS), round(each.start_us + each.duration_us, _DIGITS)
    span = {"ts": start, "dur": round(stop - start, _DIGITS)}
    return {"name": each.name, "ph": "X", "pid": 0, "tid": each.rank, **span, "args": dict(each.args)}


def _flow(number: int, arrow: Arrow) -> list[dict[str, Any]]:
    """A flow ends in the slice that encloses it, so a little before that slice does."""
    taken = arrow.taken_us - 0.01 * (arrow.taken_us - arrow.sent_us)
    both = {"name": "message", "cat": "message", "id": number, "pid": 0}
    return [
        {**both, "ph": "s", "tid": arrow.source, "ts": round(arrow.sent_us, _DIGITS)},
        {**both, "ph": "f", "bp": "e", "tid": arrow.dest, "ts": round(taken, _DIGITS)},
    ]
