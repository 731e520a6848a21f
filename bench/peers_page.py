"""The tables of hpccoll beside the fastest of several libraries, from the results of best_peers.py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpccoll.units import format_size

RESULTS = Path(__file__).parent / "results" / "best_peers"
HEADLINE = RESULTS / "2-cores-2.jsonl"
OWN = "hpccoll over MPICH", "hpccoll over Open MPI"
Record = Mapping[str, Any]


def format_headline() -> Iterator[str]:
    """Yield the Markdown lines with which the project's README.md begins: all-reduces of newly written arrays."""
    run, *records = _read(HEADLINE)
    yield "| all-reduce of | `comm.all_reduce(x)` | the fastest other library | hpccoll |\n|---|---|---|---|"
    for record in records:
        if record["op"] == "all_reduce" and record["style"] == "written":
            peer = record["fastest_peer"]
            own_us, ratio = record["time_us"][OWN[0]][1], record["ratio"][OWN[0]][1]
            size, times = format_size(record["nbytes"]), f"{_us(own_us)} | {_us(record['time_us'][peer][1])} ({peer})"
            yield f"| {size} | {times} | {ratio:.2f}x as fast |"
    yield (
        "\nThe times are medians over calls; the program wrote to `x` before each call. The other libraries are MPICH "
        f"at two thread levels, Open MPI with four components, and Gloo. {_format_origin(run, records)}\n"
    )


def format_tables() -> Iterator[str]:
    """Yield the Markdown lines of all recorded comparisons with the fastest library."""
    yield "# hpccoll beside the fastest of several libraries\n"
    yield (
        "Each library has its best settings, and runs in a job of its own (`bench/best_peers.py`). The peer of each "
        "row is the fastest of the other libraries that the command of the section names; by default, these are MPICH "
        "at two thread levels, Open MPI with four components, and Gloo. A ratio states how many times as fast hpccoll "
        "is, over each MPI library. A call of the style `written` follows a write to its input; the input of the style "
        "`repeated` never changes and stays in the caches.\n"
    )
    for path in sorted(RESULTS.glob("*.jsonl")):
        run, *records = _read(path)
        yield f"## {records[0]['ranks']} ranks on {run['cores']} cores\n"
        yield f"`{run['command']}`\n"
        yield f"{_format_origin(run, records)}\n"
        yield f"| operation | size | style | the fastest peer | {' | '.join(OWN)} |\n|---|---|---|---|---|---|"
        for record in records:
            peer, times, ratios = record["fastest_peer"], record["time_us"], record["ratio"]
            cells = [_format_own(times[own][1], ratios[own]) if own in times else "-" for own in OWN]
            row = [
                record["op"],
                format_size(record["nbytes"]),
                record["style"],
                f"{_us(times[peer][1])} ({peer})",
                *cells,
            ]
            yield f"| {' | '.join(row)} |"
        yield ""


def _read(path: Path) -> list[Record]:
    """Return the records of a file, the run's record first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _format_own(microseconds: float, ratio: tuple[float, float, float]) -> str:
    """Return the time of hpccoll, and its speed relative to the fastest peer with the 95 % interval."""
    low, value, high = ratio
    return f"{_us(microseconds)}: {value:.2f}x [{low:.2f}, {high:.2f}]"


def _us(microseconds: float) -> str:
    """Return a time with its unit."""
    return f"{microseconds:,.2f} us" if microseconds < 1e3 else f"{microseconds:,.0f} us"


def _format_origin(run: Record, records: list[Record]) -> str:
    """Return a sentence with the circumstances of a run."""
    return (
        f"Measured with {records[0]['ranks']} ranks on {run['cores']} cores, {run['processor']}, on "
        f"{run['start_time'][:10]} at commit {run['commit']}."
    )
