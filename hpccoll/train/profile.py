"""Record some training steps of all ranks as one trace for ui.perfetto.dev, on a clock that all ranks share.

Each rank is a process of the trace with these tracks: "training" (steps, passes, and in them computation, communication
and waits), "in flight" (all_reduces that proceed while the rank may compute), and the operators and GPU kernels that
torch.profiler records. Within a blocking collective, the trace shows the wait until the last rank has entered it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from hpccoll.measure.clock import JobClock
from hpccoll.measure.results.output_file import explain_write_errors
from hpccoll.parallel.activity_log import Activity, ActivityKind, ActivityLog
from hpccoll.plan.drawing import format_events_json
from hpccoll.processes.joint_failure import run_on_first_rank
from hpccoll.runtime.job import detect_layout

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.measure.clock import GlobalClock

StepT = TypeVar("StepT")
SKIPPED_STEPS, PROFILED_STEPS = 2, 3  # the first steps are slower, because they bind calls
TRAINING, IN_FLIGHT, FIRST_TORCH_TRACK = 0, 1, 2
_DIGITS = 3  # decimals of times in microseconds


@dataclass(frozen=True, slots=True)
class RankProfile:
    """The recorded activities of one rank, in seconds of a clock that all ranks share, and torch.profiler's events."""

    host: str
    activities: list[Activity]
    torch_events: list[dict[str, Any]]  # events of phase X as torch.profiler writes them, in microseconds
    torch_tracks: dict[str, str]  # names of torch's tracks, by process and thread


class StepProfiler:
    """Records the activities of a few training steps of all ranks, and writes them as a trace.

    The profiler records PROFILED_STEPS steps after the first SKIPPED_STEPS, or the last steps of shorter runs. The
    constructor synchronises the clocks of the ranks and is collective over `comm`. `steps` is the number of remaining
    training steps.
    """

    def __init__(self, comm: Communicator, log: ActivityLog, steps: int) -> None:
        self._comm, self._log = comm, log
        layout = detect_layout(comm.mpi)
        self._host = layout.hosts[comm.rank]
        self._clock = JobClock(comm.mpi, layout, None)
        self._first = max(min(SKIPPED_STEPS, steps - PROFILED_STEPS), 0)
        devices = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            devices.append(torch.profiler.ProfilerActivity.CUDA)
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # without this, torch's profiler prints to standard error
        self._torch_profile = torch.profiler.profile(activities=devices)

    def record(self, steps: Iterator[StepT]) -> Iterator[StepT]:
        """Yield the items of `steps`, an iterator that runs one training step per item, and record some steps."""
        for number, step in enumerate(self._start_before(steps), 1):
            if number == self._first + PROFILED_STEPS:
                self._stop()
            yield step
        self._stop()

    def _start_before(self, steps: Iterator[StepT]) -> Iterator[StepT]:
        """Yield the items of `steps`, each a training step, and start recording before the first step to record."""
        yield from islice(steps, self._first)
        self._torch_profile.start()
        self._log.is_enabled = True
        yield from steps

    @property
    def has_recorded(self) -> bool:
        """Whether a step has been recorded, which is the same on all ranks."""
        return bool(self._log.activities)

    def _stop(self) -> None:
        """Stop recording; do nothing if the recording has been stopped."""
        if self._log.is_enabled:
            self._log.is_enabled = False
            self._torch_profile.stop()

    def write(self, file: str) -> None:
        """Write the trace of all ranks to `file` on rank 0; collective. At least one step must have been recorded.

        Raises UsageError on all ranks if rank 0 cannot write the file.
        """
        clock = self._clock.refresh() if self._clock.drifts else self._clock.current
        events, tracks = _export_torch_trace(self._torch_profile)
        shift_us = _find_shift_us(self._log.activities, events)
        for event in events:
            event["ts"] = 1e6 * clock.to_global(1e-6 * (event["ts"] + shift_us))
        activities = [_to_global(activity, clock) for activity in self._log.activities]
        profiles = self._comm.gather_object(RankProfile(self._host, activities, events, tracks))
        run_on_first_rank(self._comm.mpi, lambda: self._write_profiles(file, profiles or []))

    def _write_profiles(self, file: str, profiles: Sequence[RankProfile]) -> None:
        """Write the trace of all ranks' `profiles` to `file`; raise UsageError if it cannot be written."""
        about = {"clock": self._clock.name, "clock_error_us": round(1e6 * self._clock.error_s, 1)}
        trace = make_profile_trace(profiles, self._clock.error_s) | {"otherData": about}
        with explain_write_errors(file, "--profile"):
            Path(file).write_text(format_events_json(trace), encoding="utf-8")


def _to_global(activity: Activity, clock: GlobalClock) -> Activity:
    """Return `activity` with its times converted from this rank's clock to the clock that all ranks share."""
    begin_s, end_s = clock.to_global(activity.begin_s), clock.to_global(activity.end_s)
    return replace(activity, begin_s=begin_s, end_s=end_s)


def _export_torch_trace(profile: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the events of torch.profiler that have a duration, and the names of their tracks by process and thread."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "torch.json"
        profile.export_chrome_trace(str(file))
        exported = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in exported if event["ph"] == "X" and event.get("cat") not in ("Trace", None)]
    used = sorted({_name_track(event) for event in events})
    named = {_name_track(event): event["args"]["name"] for event in exported if event["name"] == "thread_name"}
    return events, {track: f"torch: {named.get(track, track)}" for track in used}


def _name_track(event: Mapping[str, Any]) -> str:
    """Return the process and thread of an event of torch.profiler as one string."""
    return f"{event['pid']}/{event['tid']}"


def _find_shift_us(activities: Iterable[Activity], events: Iterable[Mapping[str, Any]]) -> float:
    """Return the microseconds to add to the times of torch's `events` to convert them to the clock of the log.

    The log records a step's begin slightly later than torch does, so the smallest difference of both times is best.
    """
    begins = {activity.name: activity.begin_s for activity in activities if activity.kind is ActivityKind.STEP}
    marked = [event for event in events if event["cat"] == "user_annotation" and event["name"] in begins]
    return min(1e6 * begins[event["name"]] - float(event["ts"]) for event in marked)


def make_profile_trace(profiles: Sequence[RankProfile], clock_error_s: float = 0.0) -> dict[str, Any]:
    """Return the trace of all ranks as a dictionary of the Trace Event Format; times begin at 0.

    `profiles` has the activities of each rank, and `clock_error_s` the error of the clock that they share.
    """
    arrivals: dict[str, dict[int, float]] = defaultdict(dict)
    for rank, profile in enumerate(profiles):
        for activity in profile.activities:
            if activity.collective and not activity.in_background:
                arrivals[activity.collective][rank] = activity.begin_s
    zero_s = min(activity.begin_s for profile in profiles for activity in profile.activities)
    events: list[dict[str, Any]] = []
    for rank, profile in enumerate(profiles):
        foreground = [activity for activity in profile.activities if not activity.in_background]
        waits = [wait for activity in foreground for wait in _find_wait(activity, rank, arrivals, clock_error_s)]
        events += _list_metadata(rank, profile)
        for activity in [*profile.activities, *_list_computation(foreground), *waits]:
            events.append(_make_event(activity, rank, zero_s))
        thread_ids = {track: FIRST_TORCH_TRACK + at for at, track in enumerate(profile.torch_tracks)}
        for event in profile.torch_events:
            place = {
                "pid": rank,
                "tid": thread_ids[_name_track(event)],
                "ts": round(event["ts"] - 1e6 * zero_s, _DIGITS),
            }
            events.append({key: event[key] for key in ("name", "cat", "ph", "dur")} | place)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _find_wait(
    activity: Activity, rank: int, arrivals: Mapping[str, Mapping[int, float]], clock_error_s: float
) -> Iterator[Activity]:
    """Yield at most one activity: the wait of `rank` for the last rank of a blocking collective.

    Args:
        activity: the collective on this rank.
        arrivals: by name of the collective, the time at which each rank entered it.
        clock_error_s: the error of the clock; shorter waits are left out.
    """
    begins = arrivals.get(activity.collective, {})
    last = max(begins, key=lambda other: begins[other], default=rank)
    if last != rank and begins[last] - activity.begin_s > clock_error_s:
        yield Activity(ActivityKind.WAIT, f"wait for rank {last}", activity.begin_s, min(begins[last], activity.end_s))


def _list_computation(activities: Sequence[Activity]) -> Iterator[Activity]:
    """Yield the parts of all passes in which the rank neither communicates nor waits."""
    others = [activity for activity in activities if activity.kind in (ActivityKind.COMMUNICATION, ActivityKind.WAIT)]
    others.sort(key=lambda other: other.begin_s)
    for whole in activities:
        if whole.kind is not ActivityKind.PASS:
            continue
        inside = [other for other in others if whole.begin_s <= other.begin_s and other.end_s <= whole.end_s]
        begins = [whole.begin_s, *(activity.end_s for activity in inside)]
        ends = [*(activity.begin_s for activity in inside), whole.end_s]
        for begin_s, end_s in zip(begins, ends, strict=True):
            yield Activity(ActivityKind.COMPUTE, "compute", begin_s, end_s)


def _make_event(activity: Activity, rank: int, zero_s: float) -> dict[str, Any]:
    """Return an activity as an event of the Trace Event Format; `zero_s` is the time that becomes 0."""
    begin_us, end_us = (round(1e6 * (time_s - zero_s), _DIGITS) for time_s in (activity.begin_s, activity.end_s))
    place = {"pid": rank, "tid": IN_FLIGHT if activity.in_background else TRAINING}
    args = {"collective": activity.collective} if activity.collective else {}
    times = {"ts": begin_us, "dur": round(end_us - begin_us, _DIGITS)}
    return {"name": activity.name, "cat": activity.kind.value, "ph": "X", **place, **times, "args": args}


def _list_metadata(rank: int, profile: RankProfile) -> Iterator[dict[str, Any]]:
    """Yield the trace events that name a rank's process and tracks, and sort the processes by rank."""

    def name(kind: str, tid: int, **args: Any) -> dict[str, Any]:
        """Return a metadata event of the given kind for the track `tid` of this rank."""
        return {"name": kind, "ph": "M", "pid": rank, "tid": tid, "args": args}

    yield name("process_name", TRAINING, name=f"rank {rank} on {profile.host}")
    yield name("process_sort_index", TRAINING, sort_index=rank)
    for tid, track in enumerate(["training", "in flight", *profile.torch_tracks.values()]):
        yield name("thread_name", tid, name=track)
        yield name("thread_sort_index", tid, sort_index=tid)
