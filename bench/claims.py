"""The claims that README.md leads with: each compares some implementations (sides) with a baseline over message sizes.

The figures of a claim come from a file of recorded results. `list_points` reads them, `format_claim` writes a claim's
section of README.md, and claim_charts.py draws its chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from hpccoll.measure.results.result_file import read_records
from hpccoll.units import format_size

RESULTS = Path(__file__).parent / "results"
MOST_ROWS = 5
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A comparison of sides with a baseline; the first of `sides` is the subject of the claim.

    Args:
        name: stem of the chart's file name.
        title: heading of the section.
        results: stem of the file of recorded results.
        case: the recorded case.
        baseline: name of the baseline in the text.
        sides: names of sides in the records, with their names in the text.
        is_inverse: whether the records have the ratios of the other sides to the subject, which are then inverted.
    """

    name: str
    title: str
    results: str
    case: str
    baseline: str
    sides: Mapping[str, str]
    is_inverse: bool = False


class Point(NamedTuple):
    """The time of a side at one message size, and its speed relative to the baseline with the 95 % interval."""

    nbytes: int
    baseline_us: float
    side_us: float
    ratio: float
    low: float
    high: float


CLAIMS = (
    Claim(
        "symmetric",
        "All-reduce of symmetric buffers",
        "symmetric-mpich-2",
        "all_reduce",
        "the MPI library",
        {"symmetric": "symmetric buffers", "ordinary": "ordinary arrays", "gloo": "Gloo"},
    ),
    Claim(
        "auto",
        'All-reduce with `algorithm="auto"`, without a tuning table',
        "auto_untuned-mpich-2",
        "all_reduce, host",
        "auto",
        {"mpi": "the MPI library", "gloo": "Gloo"},
        is_inverse=True,
    ),
    Claim(
        "two-level",
        "All-reduce on four nodes with links of 400 Mbit/s",
        "hierarchy-mpich-4x2",
        "all_reduce",
        "the MPI library",
        {"auto": "auto", "hierarchical_ring": "hierarchical_ring", "ring": "ring (one level)"},
    ),
    Claim(
        "repeated-calls",
        "The time of a repeated call",
        "call_overhead-mpich-2",
        "all_reduce",
        "mpi4py's `Allreduce(IN_PLACE, x)`",
        {"all_reduce(x), seen before": "comm.all_reduce(x)", "prepared op()": "a prepared all_reduce"},
    ),
    Claim(
        "new-arrays",
        "The time of a call on new arrays",
        "call_overhead-mpich-2",
        "all_reduce, new, NumPy",
        "mpi4py's `Allreduce`",
        {"all_reduce": "comm.all_reduce(x)"},
    ),
    Claim(
        "executables",
        "A plan against the same algorithm written by hand",
        "executables-mpich-2",
        "ring",
        "a hand-written ring",
        {"hpccoll executable": "hpccoll's ring", "MPI library": "the MPI library"},
    ),
    Claim(
        "mpi-engine",
        "The MPI times of `hpccoll bench` against a plain mpi4py loop",
        "mpi_engine-mpich-2",
        "in place",
        "an mpi4py loop",
        {"mpi engine of hpccoll bench": "hpccoll bench"},
    ),
    Claim(
        "half-precision",
        "All-reduce of 16-bit floats against float32 of the same number of bytes",
        "half_precision-mpich-2",
        "all_reduce, shared_two_shot",
        "float32",
        {"float16": "float16", "bfloat16": "bfloat16"},
    ),
)


def read_results(stem: str) -> list[Record]:
    """Return the records of a file of recorded results, the run's record first."""
    return list(read_records(RESULTS / f"{stem}.jsonl", "bench/claims.py").records)


def list_points(claim: Claim, records: Sequence[Record]) -> dict[str, list[Point]]:
    """Return the points of each side in order of message size; a case that was measured twice counts once."""
    wanted = [r for r in records if r["kind"] == "comparison" and r["case"] == claim.case]
    baseline: dict[int, float] = {}
    points: dict[str, dict[int, Point]] = {side: {} for side in claim.sides}
    for record in wanted:
        nbytes, time_us = record["nbytes"], record["time_us"]["p50"]
        if record["ratio"] is None:
            baseline.setdefault(nbytes, time_us)
        elif record["side"] in points:
            value, low, high = (record["ratio"][key] for key in ("value", "low", "high"))
            if claim.is_inverse:
                value, low, high = 1 / value, 1 / high, 1 / low
            points[record["side"]].setdefault(nbytes, Point(nbytes, baseline[nbytes], time_us, value, low, high))
    return {side: [of[nbytes] for nbytes in sorted(of)] for side, of in points.items()}


def format_claim(claim: Claim) -> Iterator[str]:
    """Yield the Markdown lines of a claim: heading, result in words, chart, table of some sizes, origin."""
    run, *records = read_results(claim.results)
    points = list_points(claim, records)
    subject = next(iter(claim.sides))
    yield f"### {claim.title}\n"
    yield f"{_format_result(claim, points[subject])}\n"
    yield f"![{claim.title.replace('`', '')}: speed over message size](charts/{claim.name}.svg)\n"
    yield from _format_table(claim, points)
    yield f"\n{format_origin(run)} [All measured sizes](tables/{claim.results}.md).\n"


def _format_result(claim: Claim, points: Sequence[Point]) -> str:
    """Return a sentence with the smallest and the largest ratio of the claim's subject."""
    low, high = min(points, key=lambda point: point.ratio), max(points, key=lambda point: point.ratio)
    who, whom = next(iter(claim.sides.values())), claim.baseline
    who, whom = (whom, who) if claim.is_inverse else (who, whom)
    who = f"the all-reduce of {who}" if who.endswith("buffers") else who
    return (
        f"From {format_size(points[0].nbytes)} to {format_size(points[-1].nbytes)}, {who} is {low.ratio:.2f} times (at "
        f"{format_size(low.nbytes)}) to {high.ratio:.2f} times (at {format_size(high.nbytes)}) as fast as {whom}."
    )


def _format_table(claim: Claim, points: Mapping[str, Sequence[Point]]) -> Iterator[str]:
    """Yield the lines of a table with at most MOST_ROWS sizes."""
    sizes = [point.nbytes for point in next(iter(points.values()))]
    yield f"| size | {claim.baseline} | {' | '.join(claim.sides.values())} |"
    yield f"|---|---|{'---|' * len(claim.sides)}"
    for nbytes in _pick(sizes):
        row = [next((p for p in of if p.nbytes == nbytes), None) for of in points.values()]
        base_us = next(point.baseline_us for point in row if point is not None)
        who = f"{claim.baseline} " if claim.is_inverse else ""
        cells = ["-" if p is None else f"{_us(p.side_us)}: {who}{_format_ratio(p)}" for p in row]
        yield f"| {format_size(nbytes)} | {_us(base_us)} | {' | '.join(cells)} |"


def _format_ratio(point: Point) -> str:
    """Return the ratio of a point with its interval, as text."""
    return f"{point.ratio:.2f}x [{point.low:.2f}, {point.high:.2f}]"


def _pick(sizes: Sequence[int]) -> list[int]:
    """Return at most MOST_ROWS evenly spaced elements, the first and the last among them."""
    if len(sizes) <= MOST_ROWS:
        return list(sizes)
    return [sizes[round(index * (len(sizes) - 1) / (MOST_ROWS - 1))] for index in range(MOST_ROWS)]


def _us(microseconds: float) -> str:
    """Return a time with its unit."""
    return f"{microseconds:,.2f} us" if microseconds < 1e3 else f"{microseconds:,.0f} us"


def format_origin(run: Record) -> str:
    """Return a sentence with the circumstances of a run."""
    versions = run["versions"]
    shared = f" on {max(run['cores'])} cores" if run["oversubscribed"] else ""
    return (
        f"Measured with {run['ranks']} rank{'s' * (run['ranks'] > 1)}{shared}, {run['processor']}, {versions['mpi']}, "
        f"on {run['start_time'][:10]} at commit {run['commit'] or 'unknown'}."
    )


class PredictionError(NamedTuple):
    """How far the simulator's predictions are from the measured times of one operation."""

    setting: str
    op: str
    algorithms: int
    cases: int
    median: float


def list_prediction_errors() -> list[PredictionError]:
    """Return the median errors at the message sizes to which the machine model was not fitted."""
    errors = []
    for stem, setting in (("predict-2", "2 ranks, 1 node"), ("predict-4x2", "8 ranks, 4 nodes")):
        records = [record for record in read_results(f"prediction/{stem}") if "measured_us" in record]
        for op in dict.fromkeys(record["op"] for record in records):
            tested = [record for record in records if record["op"] == op and not record["fitted"]]
            algorithms = {record["algorithm"] for record in tested}
            found = median(record["error"] for record in tested)
            errors.append(PredictionError(setting, op, len(algorithms), len(tested), found))
    return errors


def format_prediction() -> Iterator[str]:
    """Yield the Markdown lines of the section about predicted times."""
    errors = list_prediction_errors()
    yield "### Predicted times\n"
    yield (
        "The simulator, fitted to half of the message sizes, predicts the times of the rest with median errors of "
        f"{min(e.median for e in errors):.1%} to {max(e.median for e in errors):.1%}.\n".replace("%", " %")
    )
    yield "![Predicted over measured time](charts/prediction.svg)\n"
    yield "| ranks | operation | algorithms | predicted times | median error |\n|---|---|---|---|---|"
    for setting, op, algorithms, cases, error in errors:
        yield f"| {setting} | {op} | {algorithms} | {cases} | {error:.1%} |".replace("%", " %")
    yield ""
