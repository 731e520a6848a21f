"""The sections of operations: latency, bus bandwidth and the distance to the bound over sizes, and who is fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hpccoll.measure.comparison import compute_ratio
from hpccoll.measure.record import CollectiveRecord
from hpccoll.measure.statistics import CONFIDENCE, median_ranks
from hpccoll.measure.table import format_ratio, format_title
from hpccoll.report.chart import Chart, Line, Point
from hpccoll.report.distance import Models
from hpccoll.report.looks import BOUND, Look
from hpccoll.report.scale import tell_bytes_per_s, tell_seconds, tell_span, tell_times
from hpccoll.report.section import Panel, Section, Table, legend_of, panel_of
from hpccoll.report.series import Name, Picture, bus_bytes_per_s, seconds
from hpccoll.units import format_size

Looks: TypeAlias = dict[Name, Look]
Value: TypeAlias = Callable[[CollectiveRecord], tuple[float, float, float] | None]
DASH = "-"
FASTEST = ("size", "fastest", "time", "against mpi", "over bound")
_TIE = 1.05  # who leads goes on leading in words while nobody is faster by more
ALL = ("size", "engine", "algorithm", "median", "95 % interval", "iterations", "stopped by", "bus bandwidth", "wrong")


def sections(pictures: Sequence[Picture], looks: Looks, models: Models) -> list[Section]:
    """Return a section for each setting; where both places were measured, out of place is folded."""
    found: dict[object, list[Picture]] = {}
    for picture in pictures:
        found.setdefault(picture.setting, []).append(picture)
    return [_section(f"op{at}", each, looks, models) for at, each in enumerate(found.values(), 1)]


def _section(ident: str, places: Sequence[Picture], looks: Looks, models: Models) -> Section:
    first, *rest = places
    names = {curve.name for picture in places for curve in picture.curves}
    tables = [Table(f"All measurements, {each.place}", ALL, _all(each), _numbers(ALL), folded=True) for each in places]
    folded = [panel for each in rest for panel in _panels(f"{ident}o", each, looks, models)]
    return Section(
        ident,
        f"{format_title(first.setting)}, {first.place}",
        _intro(first),
        tuple(_panels(ident, first, looks, models)),
        legend_of(names, looks),
        tuple(tables),
        tuple(folded),
        "Out of place" if folded else "",
        beside=_fastest(first, models),
        short=_short(first),
    )


def _short(picture: Picture) -> str:
    ranks, nodes = picture.setting.ranks, picture.setting.nodes
    return f"{picture.setting.op}, {ranks} rank{'s' * (ranks > 1)}" + (f" on {nodes} nodes" if nodes > 1 else "")


def _intro(picture: Picture) -> str:
    """Say in a sentence who is fastest where; who is behind by a hair goes on leading."""
    spans: list[tuple[str, int, int]] = []
    for nbytes in picture.sizes:
        best = picture.best(nbytes)
        if best is None:
            continue
        close = {
            curve.name.label
            for curve in picture.curves
            if (record := curve.at(nbytes)) and record.time_us.p50 <= best[1].time_us.p50 * _TIE and not record.wrong
        }
        if spans and spans[-1][0] in close:
            spans[-1] = (spans[-1][0], spans[-1][1], nbytes)
        else:
            spans.append((best[0].label, nbytes, nbytes))
    if not spans:
        return "No result was right."
    if picture.sizes == (0,):
        return f"Fastest: {spans[0][0]}."
    told = [
        f"{label} {'at' if low == high else 'from'} {format_size(low)}"
        + (f" to {format_size(high)}" if low != high else "")
        for label, low, high in spans
    ]
    return f"Fastest, within {_TIE - 1:.0%}: {', '.join(told)}."


def _panels(ident: str, picture: Picture, looks: Looks, models: Models) -> list[Panel]:
    about = f"{format_title(picture.setting)}, {picture.place}. {_intro(picture)}"

    def over(record: CollectiveRecord) -> tuple[float, float, float] | None:
        bound = models.bound_s(record)
        return None if bound is None else tuple(each / bound for each in seconds(record))  # type: ignore[return-value]

    known = _bound_line(picture, models)
    panels = [
        ("t", "Time", tell_seconds, _lines(picture, looks, seconds, known), False),
        ("b", "Bus bandwidth", tell_bytes_per_s, _lines(picture, looks, bus_bytes_per_s), False),
        ("m", "Time over the model's bound", tell_times, _lines(picture, looks, over), True),
    ]
    found = [
        panel_of(
            Chart(f"{ident}{key}", heading, about, "message size", _size, told, lines, log=key != "b", unity=unity)
        )
        for key, heading, told, lines, unity in panels
    ]
    return [panel for panel in found if panel is not None]


def _size(nbytes: float) -> str:
    return format_size(round(nbytes))


def _lines(picture: Picture, looks: Looks, value: Value, more: Sequence[Line] = ()) -> tuple[Line, ...]:
    """Return the lines of a picture, those without a colour undermost, the peers on top."""
    found = []
    for curve in picture.curves:
        points = [
            Point(record.row.nbytes, *values, _told(record))
            for record in curve.records
            if (values := value(record)) is not None
        ]
        found.append(Line(curve.name.label, looks[curve.name], tuple(points)))
    found.sort(key=lambda line: (not line.look.quiet, line.look.css.startswith("peer")))
    return (*more, *found)


def _bound_line(picture: Picture, models: Models) -> list[Line]:
    """Return the line of the bound, drawn below the others; empty where no machine is known."""
    points = []
    for nbytes in picture.sizes:
        records = [record for curve in picture.curves if (record := curve.at(nbytes))]
        bound = models.bound_s(records[0])
        if bound is not None:
            points.append(Point(nbytes, bound, bound, bound))
    return [Line("the model's bound", BOUND, tuple(points))] if points else []


def _told(record: CollectiveRecord) -> str:
    made = len(record.samples_us)
    told = f"{made} iteration{'s' * (made > 1)}"
    return f"{told}, WRONG in {record.wrong} elements" if record.wrong else told


def _fastest(picture: Picture, models: Models) -> Table:
    """Return who is fastest at each size; without the columns that have nothing to say."""
    rows = [_leader(picture, nbytes, models) for nbytes in picture.sizes]
    kept = [at for at in range(len(FASTEST)) if at <= FASTEST.index("time") or any(row[at] != DASH for row in rows)]
    columns = tuple(FASTEST[at] for at in kept)
    return Table(
        "Fastest at each size", columns, tuple(tuple(row[at] for at in kept) for row in rows), _numbers(columns)
    )


def _leader(picture: Picture, nbytes: int, models: Models) -> tuple[str, ...]:
    best = picture.best(nbytes)
    if best is None:
        return (format_size(nbytes), "none was right", DASH, DASH, DASH)
    name, record = best
    reference, bound = picture.reference(nbytes, name.library), models.bound_s(record)
    ratio = None if reference is None or reference is record else compute_ratio(record, reference)
    against = DASH if ratio is None else " ".join(format_ratio(ratio))
    over = DASH if bound is None else tell_times(seconds(record)[0] / bound)
    return (format_size(nbytes), name.label, tell_seconds(seconds(record)[0]), against, over)


def _all(picture: Picture) -> tuple[tuple[str, ...], ...]:
    rows = []
    for nbytes in picture.sizes:
        for curve in picture.curves:
            record = curve.at(nbytes)
            if record is None:
                continue
            wrong = "not checked" if record.wrong is None else str(record.wrong)
            engine = f"{curve.name.engine} ({curve.name.library})" if curve.name.library else curve.name.engine
            head = (format_size(nbytes), engine, curve.name.algorithm or DASH)
            made = (str(len(record.samples_us)), str(record.stop))
            rows.append((*head, *_times(record), *made, _bus(record), wrong))
    return tuple(rows)


def _times(record: CollectiveRecord) -> tuple[str, str]:
    """Return the median and its interval, with a ? where that covers less than 95 %."""
    middle, low, high = seconds(record)
    sure = median_ranks(len(record.samples_us))[1] >= CONFIDENCE
    return tell_seconds(middle), f"{tell_span(low, high, tell_seconds)}{'' if sure else ' ?'}"


def _bus(record: CollectiveRecord) -> str:
    speed = bus_bytes_per_s(record)[0]
    return tell_bytes_per_s(speed) if speed > 0 else DASH


def _numbers(columns: Sequence[str]) -> frozenset[str]:
    words = ("fastest", "engine", "algorithm", "stopped by")
    return frozenset(column for column in columns if column not in words)
