"""Mutants of pipeline schedules: one or two random changes of a list of cells per rank, in torch's notation."""

from __future__ import annotations

import re
from collections import Counter

KINDS = (
    *("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"),
    *("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD"),
)
ACTION = re.compile(r"(\d+)([A-Z_]+)(\d*)")


def change_part(cell, rng, stages, microbatches):
    """Return a cell with another stage, kind or micro-batch in one of its actions."""
    found = [each for each in ACTION.finditer(cell) if each[2] in KINDS]
    chosen = found[rng.randrange(len(found))]
    stage, kind, microbatch = chosen[1], chosen[2], chosen[3]
    what = rng.randrange(3)
    if what == 0:
        stage = str(rng.randrange(stages + 1))
    elif what == 1:
        kind = rng.choice([each for each in KINDS[:8] if each != kind])
        microbatch = microbatch or "0"
    elif microbatch:
        microbatch = str(rng.randrange(microbatches + 1))
    return cell[: chosen.start()] + stage + kind + microbatch + cell[chosen.end() :]


def mutate(rows, rng, stages, microbatches):
    """Return a mutant of `rows`, and a description of the change."""
    rows = [list(row) for row in rows]
    rank = rng.choice([rank for rank, row in enumerate(rows) if len(row) > 1])
    row = rows[rank]
    at = rng.randrange(len(row))
    cell = row[at]
    how = rng.choice(("swap", "swap", "move", "drop", "duplicate", "mismatch", "mismatch", "give", "overlap", "cut"))
    if how == "swap":
        at = min(at, len(row) - 2)
        row[at], row[at + 1] = row[at + 1], row[at]
        return rows, f"rank {rank}: swapped {row[at + 1]} and {row[at]}"
    if how == "move":
        row.insert(rng.randrange(len(row)), row.pop(at))
    elif how == "drop":
        row.pop(at)
    elif how == "duplicate":
        row.insert(rng.randrange(at, len(row) + 1), cell)
    elif how == "mismatch":
        row[at] = change_part(cell, rng, stages, microbatches)
        return rows, f"rank {rank}: {cell} became {row[at]}"
    elif how == "give":
        other = rows[rng.randrange(len(rows))]
        other.insert(rng.randrange(len(other) + 1), row.pop(at))
    elif how == "overlap" and not cell.startswith("("):
        at = min(at, len(row) - 2)
        if not row[at + 1].startswith("(") and not row[at].startswith("("):
            row[at : at + 2] = [f"({row[at]};{row[at + 1]})OVERLAP_F_B"]
    elif how == "overlap":
        row[at : at + 1] = cell[1 : cell.index(")")].split(";")
    elif how == "cut":
        del row[at:]
    return rows, f"rank {rank}: {how} {cell}"


def explain_harmless(rows, mutant):
    """Return why a mutant that the interpreter accepts does the same as the original, or None if it is unexplained."""
    pairs = list(zip(rows, mutant, strict=True))
    if rows == mutant:
        return "nothing has changed"
    if all(Counter(old) == Counter(new) for old, new in pairs):
        return "the same actions on every rank; those that changed places do not depend on each other"
    flat = [Counter(each[0] for cell in row for each in ACTION.finditer(cell)) for row in (*rows, *mutant)]
    if flat[: len(rows)] == flat[len(rows) :]:
        return "the same actions; passes that do not depend on each other are overlapped, or no longer"
    return None
