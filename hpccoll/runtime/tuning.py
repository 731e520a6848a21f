"""The stored tuning tables: where they lie, how all ranks come to hold the same one, and the log of decisions.

A table lies in the user's data directory, under `tuning/`, in a file for each MPI library and version, class of host
(processor, cores, NUMA nodes) and layout of the ranks. `HPCCOLL_TUNING=FILE` names another file, `HPCCOLL_TUNING=off`
none. Rank 0 alone looks at the environment and the file; the others get what it found, so no two ranks can differ. A
file that cannot be used is a warning, never an error: without it there are the rules of choice.py.

`HPCCOLL_LOG=1` prints on rank 0's standard error what was chosen and why, once for each distinct decision.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpccoll.errors import UsageError
from hpccoll.runtime import job
from hpccoll.selection.table import FAMILY, Table, Where
from hpccoll.units import format_size

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.selection.rules import Choice, Question

VARIABLE, LOG_VARIABLE, OFF = "HPCCOLL_TUNING", "HPCCOLL_LOG", "off"
_CPUINFO, _NODES = Path("/proc/cpuinfo"), Path("/sys/devices/system/node")
_REMEDY = f"run `hpccoll tune` again, remove the file, or set {VARIABLE}={OFF}"


def where_of(layout: job.Layout) -> Where:
    """Return where a table of these ranks holds, as this rank's host sees it."""
    counts = layout.ranks_per_node
    alike = len(set(counts)) == 1
    ranks = f"{counts[0]} rank{'s' * (counts[0] > 1)}" if alike else f"{'+'.join(map(str, counts))} ranks"
    nodes = "1 node" if len(counts) == 1 else f"{'each of ' * alike}{len(counts)} nodes"
    return Where(job.mpi_library(), host_class(), f"{ranks} on {nodes}{', more than cores' * layout.oversubscribed}")


@cache
def host_class() -> str:
    """Return what kind of host this is: processor, cores and NUMA nodes; hosts that are alike have the same."""
    cores, numa = os.cpu_count() or 1, sum(1 for _ in _NODES.glob("node[0-9]*")) or 1
    return f"{_processor()}, {cores} cores, {numa} NUMA node{'s' * (numa > 1)}"


def _processor() -> str:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def default_path(where: Where) -> Path:
    """Return the file of the table for that place, in the user's data directory."""
    from platformdirs import user_data_path

    facts = (where.mpi, where.host, where.layout)
    digest = hashlib.blake2b("\n".join(facts).encode(), digest_size=4).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9.+]+", "-", f"{where.mpi} {where.layout}").strip("-")
    return user_data_path("hpccoll", appauthor=False) / "tuning" / f"{readable}-{digest}.json"


def path_for(where: Where, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that `auto` reads, None where HPCCOLL_TUNING is `off`."""
    named = environ.get(VARIABLE, "")
    if named.lower() == OFF:
        return None
    return Path(named) if named else default_path(where)


def read(path: Path) -> Table:
    """Return the table in a file.

    Raises:
        UsageError: there is no file, it cannot be read, or holds no table; names the file.
    """
    try:
        return Table.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:  # UsageError, bad JSON and bad UTF-8 are all ValueErrors
        raise UsageError(f"{path}: {error}") from error


def stored(path: Path, where: Where) -> Table:
    """Return the table in `path` that a new one is merged into, an empty one where there is none, or only an old one.

    Raises:
        UsageError: what is there is something else, or the table of another place: neither is overwritten.
    """
    try:
        if not path.exists():
            return Table(where, ())
        known = read(path)
    except UsageError as error:
        if FAMILY.encode() in path.read_bytes():
            return Table(where, ())
        raise UsageError(f"{error}; it is not overwritten: name another file, or remove it") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    if known.where != where:
        raise UsageError(f"{path}: holds the table of {known.where.told}, this is {where.told}; name another file")
    return known


def store(path: Path, table: Table) -> None:
    """Replace the file in one step: who reads it meanwhile finds the old table or the new one.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(table.as_json(), indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    why = error.strerror or str(error)
    return UsageError(f"{path}: cannot write the tuning table there ({why}); name another file with --output")


def table_for(comm: MPI.Intracomm, layout: job.Layout | None = None) -> Table | None:
    """Return the stored table for these ranks, None where there is none; alike on every rank. Collective.

    Args:
        comm: the ranks.
        layout: where they run, if that is known already.
    """
    layout = layout or job.layout(comm)
    table: Table | None = comm.bcast(
        _found(where_of(layout), comm.size == job.mpi().COMM_WORLD.size) if comm.rank == 0 else None
    )
    return table


def _found(where: Where, whole_job: bool) -> Table | None:
    """Read the table on rank 0; say why where it cannot be used."""
    path = path_for(where)
    if path is None:
        return None
    try:
        if not os.environ.get(VARIABLE) and not path.exists():
            return None
        table = read(path)
    except (UsageError, OSError) as error:
        _warn(f"{error}; the tuning table is not used: {_REMEDY}")
        return None
    for name in ("mpi", "host", "layout"):
        held, wanted = getattr(table.where, name), getattr(where, name)
        if held != wanted:
            # A group of some ranks is no mistake: the table that was named is for the whole job.
            if name != "layout" or whole_job:
                _warn(f"{path}: the tuning table is for {held}, this is {wanted}; it is not used: {_REMEDY}")
            return None
    return table


@cache  # every communicator comes here: once is enough
def _warn(message: str) -> None:
    _say(f"hpccoll: warning: {message}")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class DecisionLog:
    """Prints decisions, each once."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._told: set[str] = set()

    def __call__(self, question: Question, choice: Choice, dtype: str, redop: str = "") -> None:
        """Tell a decision on standard error, unless it was told before."""
        what = [
            question.operation.value,
            format_size(question.nbytes),
            dtype,
            redop if question.operation.reduces else "",
        ]
        line = (
            f"hpccoll: {' '.join(word for word in what if word)} on {self._ranks} ranks ({question.buffer}): "
            f"{choice.name}, {choice.why}"
        )
        if line not in self._told:
            self._told.add(line)
            _say(line)


def decision_log(rank: int, ranks: int, environ: Mapping[str, str] = os.environ) -> DecisionLog | None:
    """Return the log where HPCCOLL_LOG asks for it and this is rank 0, else None."""
    wanted = environ.get(LOG_VARIABLE, "0") not in ("", "0")
    return DecisionLog(ranks) if wanted and rank == 0 else None
