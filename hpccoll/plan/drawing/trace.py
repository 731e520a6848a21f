"""Timelines as Chrome trace JSON, for ui.perfetto.dev and chrome://tracing: one track per rank, one arrow per message.

Times are microseconds. The trace has events of the phase types X (complete), s and f (flow), and M (metadata). Source:
"Trace Event Format", The Chromium Project.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hpccoll.plan.simulation.timeline import Slice, Timeline, TimelineMessage

_DIGITS = 4  # decimals of a microsecond


def make_trace(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline in Chrome's Trace Event Format (as Perfetto opens it), a dictionary for `json.dumps`."""
    events = [_metadata_event("process_name", 0, timeline.name)]
    events += [_metadata_event("thread_name", rank, f"rank {rank}") for rank in range(timeline.ranks)]
    events += [_metadata_event("thread_sort_index", rank, rank) for rank in range(timeline.ranks)]
    events += [_slice_event(piece) for piece in timeline.slices]
    events += [event for number, message in enumerate(timeline.messages) for event in _arrow_events(number, message)]
    other = {"clock": timeline.clock, "ranks": timeline.ranks, "duration_us": round(timeline.duration_us, _DIGITS)}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def format_trace_json(timeline: Timeline) -> str:
    """Return a timeline as JSON text of Chrome's Trace Event Format, one event per line."""
    return format_events_json(make_trace(timeline))


def format_events_json(trace: Mapping[str, Any]) -> str:
    """Return `trace`, a dictionary of Chrome's Trace Event Format, as JSON text with one event per line."""
    whole = dict(trace)
    events = ",\n".join(json.dumps(event) for event in whole.pop("traceEvents"))
    rest = json.dumps(whole)[1:]
    return f'{{"traceEvents": [\n{events}\n], {rest}\n'


def _metadata_event(name: str, rank: int, value: str | int) -> dict[str, Any]:
    """Return the metadata event `name` for a rank's track (row of a trace), such as the track's name or position."""
    key = "sort_index" if name.endswith("index") else "name"
    return {"name": name, "ph": "M", "pid": 0, "tid": rank, "args": {key: value}}


def _slice_event(piece: Slice) -> dict[str, Any]:
    """Return the trace event (of type X: start and duration) of one slice, an activity on a rank's track."""
    start, stop = round(piece.start_us, _DIGITS), round(piece.start_us + piece.duration_us, _DIGITS)
    span = {"ts": start, "dur": round(stop - start, _DIGITS)}
    return {"name": piece.name, "ph": "X", "pid": 0, "tid": piece.rank, **span, "args": dict(piece.args)}


def _arrow_events(number: int, message: TimelineMessage) -> list[dict[str, Any]]:
    """Return the two trace events that draw a message as an arrow; `number` identifies the arrow."""
    # Each arrow ends just before the end of the receiving activity, because viewers attach an arrow to the activity in
    # which the arrow ends.
    end = message.received_us - 0.01 * (message.received_us - message.sent_us)
    both = {"name": "message", "cat": "message", "id": number, "pid": 0}
    return [
        {**both, "ph": "s", "tid": message.source, "ts": round(message.sent_us, _DIGITS)},
        {**both, "ph": "f", "bp": "e", "tid": message.dest, "ts": round(end, _DIGITS)},
    ]
