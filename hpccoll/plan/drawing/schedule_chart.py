"""The chart of a pipeline schedule: a line per rank, time to the right, a box with the micro-batch for each pass.

A rank with several stages has darker boxes for its later stages. Overlapped passes share a box, one above the other.
"""

from __future__ import annotations

from hpccoll.errors import UsageError
from hpccoll.plan.drawing.palette import COLOURS, EMPTY, INK, PALE, PAPER, QUIET, text_colour_on
from hpccoll.plan.drawing.scene import LineSegment, OutlinedBox, Scene, SceneShape, TextLabel, estimate_text_width
from hpccoll.plan.schedule import ActionKind, PipelineAction, Schedule
from hpccoll.plan.simulation.schedule_simulation import ScheduleSimulation
from hpccoll.units import format_count

EDGE, TITLE, LEGEND, MARGIN = 22.0, 52.0, 40.0, 52.0
ROW, GAP, TEXT = 26.0, 6.0, 10.0
MOST_WIDTH, LEAST_UNIT, MOST_UNIT = 2100.0, 9.0, 26.0  # width of a chart in pixels; pixels per unit of time
FILLS = {
    ActionKind.FORWARD: COLOURS[4],
    ActionKind.BACKWARD: COLOURS[1],
    ActionKind.BACKWARD_INPUT: COLOURS[3],
    ActionKind.BACKWARD_WEIGHT: COLOURS[5],
}
NAMES = {
    ActionKind.FORWARD: "F: forward",
    ActionKind.BACKWARD: "B: backward",
    ActionKind.BACKWARD_INPUT: "I: backward for inputs",
    ActionKind.BACKWARD_WEIGHT: "W: backward for weights",
}


def describe_simulation(simulation: ScheduleSimulation) -> str:
    """Return a line of text: the counts of a simulated pipeline schedule, its time, and its bubble (idle fraction)."""
    schedule = simulation.schedule
    counts = f"{format_count(schedule.stages, 'stage')} on {format_count(schedule.ranks, 'rank')}"
    peak = max(schedule.count_activations()[1])
    return (
        f"{counts}, micro-batches: {schedule.microbatches}; time {simulation.time:g}, bubble {simulation.bubble:.1%}, "
        f"at most {format_count(peak, 'live activation')} per rank"
    )


def lay_out_schedule(simulation: ScheduleSimulation) -> Scene:
    """Return the chart of a simulated pipeline schedule as a scene: a line per rank, a box per pass, time to the right.

    Raises UsageError if the schedule is too long for a legible chart.
    """
    schedule = simulation.schedule
    unit = min(MOST_UNIT, (MOST_WIDTH - MARGIN) / max(simulation.time, 1))
    if unit < LEAST_UNIT:
        longest = int((MOST_WIDTH - MARGIN) / LEAST_UNIT)
        raise UsageError(
            f"a chart of {schedule.name} is legible up to {longest} units of time, and this schedule takes "
            f"{simulation.time:g}; draw fewer micro-batches, or write a trace (.json)"
        )
    shapes: list[SceneShape] = []
    for rank in range(schedule.ranks):
        y = EDGE + TITLE + rank * (ROW + GAP)
        shapes.append(TextLabel((EDGE, y + ROW / 2 + 4), f"rank {rank}", 11, INK, "start"))
        shapes.append(OutlinedBox((EDGE + MARGIN, y, simulation.time * unit, ROW), EMPTY))
    for step in simulation.steps:
        x, y = EDGE + MARGIN + step.start * unit, EDGE + TITLE + step.rank * (ROW + GAP)
        height = ROW / len(step.step)
        for line, action in enumerate(step.step):
            box = (x, y + line * height, (step.end - step.start) * unit, height)
            shapes += _draw_pass(schedule, action, box)
    bottom = EDGE + TITLE + schedule.ranks * (ROW + GAP)
    shapes += _draw_legend(schedule, bottom + LEGEND / 2)
    subtitle = describe_simulation(simulation)
    width = max(MARGIN + simulation.time * unit, estimate_text_width(subtitle, 11), 620) + 2 * EDGE
    full = width, bottom + LEGEND + EDGE / 2
    head: list[SceneShape] = [
        OutlinedBox((0, 0, *full), PAPER),
        TextLabel((EDGE, EDGE + 14), schedule.name, 19, INK, "start", bold=True),
        TextLabel((EDGE, EDGE + 32), subtitle, 11, QUIET, "start"),
    ]
    return Scene(*full, schedule.name, f"{schedule.name}: {subtitle}", (*head, *shapes))


def _draw_pass(schedule: Schedule, action: PipelineAction, box: tuple[float, float, float, float]) -> list[SceneShape]:
    """Return the shapes of one pass: a box (x, y, width, height) with the number of its micro-batch."""
    x, y, width, height = box
    fill = _choose_fill(schedule, action)
    words = str(action.microbatch)
    size = min(TEXT, height - 2, 0.9 * width / max(estimate_text_width(words, 1), 0.1))
    label = TextLabel((x + width / 2, y + height / 2 + 0.36 * size), words, size, text_colour_on(fill))
    return [OutlinedBox(box, fill, PAPER, 1), label]


def _choose_fill(schedule: Schedule, action: PipelineAction) -> str:
    """Return the colour of a pass's box.

    Each further stage of the same rank is a third darker than the stage before.
    """
    rank = schedule.stage_ranks[action.stage]
    place = schedule.stage_ranks[: action.stage].count(rank)
    return "#" + "".join(f"{int(int(FILLS[action.kind][at : at + 2], 16) * 0.66**place):02x}" for at in (1, 3, 5))


def _draw_legend(schedule: Schedule, y: float) -> list[SceneShape]:
    """Return the legend, at height `y`, of the kinds of passes that occur in the schedule."""
    shapes: list[SceneShape] = []
    x = EDGE
    for kind in (kind for kind in FILLS if kind in schedule.kinds):
        shapes.append(OutlinedBox((x, y - 6, 14, 12), FILLS[kind], PALE))
        shapes.append(TextLabel((x + 20, y + 4), NAMES[kind], TEXT, QUIET, "start"))
        x += 40 + estimate_text_width(NAMES[kind], TEXT)
    words = "number: micro-batch" + ("; darker: later stages of the rank" if schedule.stages > schedule.ranks else "")
    shapes.append(LineSegment((x - 8, y - 8), (x - 8, y + 8), PALE))
    shapes.append(TextLabel((x, y + 4), words, TEXT, QUIET, "start"))
    return shapes


def format_schedule_grid(simulation: ScheduleSimulation) -> str:
    """Return a simulated pipeline schedule as text: a line per rank, a column per time unit.

    Raises UsageError unless all times of the simulation are integers.
    """
    schedule = simulation.schedule
    if any(step.start % 1 or step.end % 1 for step in simulation.steps):
        raise UsageError(f"a text chart of {schedule.name} needs times that are whole numbers; draw .svg or .png")
    cells = [[""] * int(simulation.time) for _ in range(schedule.ranks)]
    for step in simulation.steps:
        cells[step.rank][int(step.start)] = "+".join(map(str, step.step))
        for slot in range(int(step.start) + 1, int(step.end)):
            cells[step.rank][slot] = "-"
    widths = [max([len(str(slot)), *(len(row[slot]) for row in cells)]) for slot in range(int(simulation.time))]
    head = ["time  ", *(f"{slot:<{width}}" for slot, width in enumerate(widths))]
    lines = [" ".join(head)]
    for rank, row in enumerate(cells):
        padded = (f"{cell or '.':<{width}}" for cell, width in zip(row, widths, strict=True))
        lines.append(" ".join([f"rank {rank}".ljust(6), *padded]))
    return f"{schedule.name}: {describe_simulation(simulation)}\n\n" + "\n".join(line.rstrip() for line in lines) + "\n"
