"""With HPCCOLL_SUMMARY=1, counts the collectives of a program and prints a table of them when it ends.

The table has one row per method and size class, with the number of calls, their time, the share of calls that hpccoll
carried out, and the reasons why the MPI library carried out the other calls. Rank 0 prints its own calls. Without
HPCCOLL_SUMMARY, nothing is counted.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any, Final

from mpi4py import MPI

from hpccoll.mpi4py.acceleration import FEW_CALLS
from hpccoll.mpi4py.buffer_collectives import BufferCollectives
from hpccoll.mpi4py.configuration import SUMMARY
from hpccoll.mpi4py.messages import read_message
from hpccoll.mpi4py.object_collectives import ObjectsOverBuffers
from hpccoll.mpi4py.watched_calls import COLLECTIVES
from hpccoll.units import KiB, MiB

MOST_ROWS: Final = 20  # of the table
_CLASSES: Final = ((KiB, "< 1 KiB"), (64 * KiB, "< 64 KiB"), (MiB, "< 1 MiB"), (64 * MiB, "< 64 MiB"))


@dataclass(slots=True)
class OperationCalls:
    """The number and total time of this rank's calls of one mpi4py method, with messages of one size class.

    `over_hpccoll` counts the calls that hpccoll carried out; `reasons` counts the other calls by the reason why MPI
    carried them out.
    """

    calls: int = 0
    seconds: float = 0.0
    over_hpccoll: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@cache
def get_summary() -> dict[tuple[str, int], OperationCalls]:
    """Return this process's counts of calls, as a dict with keys of a method's name and a size class's index.

    The first call of `get_summary` on rank 0 makes the process print the counts at its exit.
    """
    calls: dict[tuple[str, int], OperationCalls] = {}
    if MPI.COMM_WORLD.Get_rank() == 0:
        atexit.register(print_summary, calls)
    return calls


def is_counting() -> bool:
    """Whether the environment variable HPCCOLL_SUMMARY is set and neither 0 nor empty."""
    return os.environ.get(SUMMARY, "0") not in ("", "0")


def count_calls(classes: Sequence[type]) -> None:
    """Replace the collective methods of communicator classes by methods that also count the calls; once per process."""
    for cls in classes:
        if hasattr(vars(cls).get("Barrier"), "counts_calls"):
            return
        for name in filter(_is_collective, dir(cls)):
            setattr(cls, name, _count(name, getattr(cls, name)))
    get_summary()


def _is_collective(name: str) -> bool:
    """Whether mpi4py's method `name` is a collective: blocking, non-blocking (Ibcast) or persistent (Bcast_init)."""
    stem = name.removesuffix("_init")
    return stem.lower() in COLLECTIVES or (stem[0] == "I" and stem[1:] in COLLECTIVES)


def _count(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `method`, mpi4py's method `name`, and counts the call."""

    @wraps(method)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method, and add the call and its time to the summary."""
        before, start = _count_over_hpccoll(self), time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            seconds = time.perf_counter() - start
            kind = name, _find_class(name, [*args, *kwargs.values()])
            calls = get_summary().setdefault(kind, OperationCalls())
            calls.calls += 1
            calls.seconds += seconds
            if _count_over_hpccoll(self) > before:
                calls.over_hpccoll += 1
            else:
                calls.reasons[_explain(self, name)] += 1

    vars(counted)["counts_calls"] = True
    return counted


def _count_over_hpccoll(comm: Any) -> int:
    """Return how many collectives of the MPI communicator `comm` hpccoll has carried out."""
    state = getattr(comm, "_state", None)
    return 0 if state is None or state.communicator is None else state.communicator._state.count - state.watched


def _explain(comm: Any, name: str) -> str:
    """Return why the MPI library carried out the latest call of the method `name`; the reason is then forgotten."""
    if not (name in vars(BufferCollectives) or name in vars(ObjectsOverBuffers)):
        return "hpccoll has no such call"
    if comm.Get_size() == 1:
        return "one rank"
    if comm._state is None:
        return FEW_CALLS
    reason, comm._state.reason = comm._state.reason, ""
    return reason or "reduction, type or no data"


def _find_class(name: str, arguments: list[Any]) -> int:
    """Return the index in _CLASSES of a call's size class, which the largest buffer or array argument determines.

    `name` is the method's name, and `arguments` are its positional and keyword arguments.
    """
    nbytes = 0
    for argument in arguments:
        if name[0].islower():
            nbytes = max(nbytes, getattr(argument, "nbytes", 0))
        elif argument is not None and not isinstance(argument, int | MPI.Op):
            message = read_message(argument, writable=False)
            nbytes = max(nbytes, message.nbytes if message is not None else 0)
    return next((number for number, (end, _) in enumerate(_CLASSES) if nbytes < end), len(_CLASSES))


def print_summary(calls: dict[tuple[str, int], OperationCalls]) -> None:
    """Print the counts of `get_summary` on standard error, the rows with the longest times first."""
    rows = [("collective", "size", "calls", "time (ms)", "hpccoll", "calls left to the MPI library")]
    for (name, number), row in sorted(calls.items(), key=lambda item: -item[1].seconds)[:MOST_ROWS]:
        size = _CLASSES[number][1] if number < len(_CLASSES) else ">= 64 MiB"
        reasons = ", ".join(f"{reason} ({count})" for reason, count in row.reasons.most_common())
        share = f"{100 * row.over_hpccoll / row.calls:.0f} %"
        rows.append((name, size, str(row.calls), f"{row.seconds * 1e3:.1f}", share, reasons))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    total, over = sum(row.calls for row in calls.values()), sum(row.over_hpccoll for row in calls.values())
    seconds = sum(row.seconds for row in calls.values())
    lines = [f"hpccoll carried out {over} of {total} collectives of rank 0, which took {seconds:.3f} s:"]
    for row_cells in rows:
        texts = [cell.ljust(width) for cell, width in zip(row_cells[:2], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row_cells[2:5], widths[2:], strict=True)]
        lines.append("  ".join((*texts, *numbers, row_cells[5])).rstrip())
    if len(calls) > MOST_ROWS:
        lines.append(f"and {len(calls) - MOST_ROWS} more kinds of calls, which took less time")
    sys.stderr.write("\n".join(lines) + "\n")
