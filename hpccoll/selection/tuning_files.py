"""Tuning tables on disk: their paths, reading and writing them, and distributing one table to all ranks.

There is one table file per MPI library and version, kind of host (processor, cores, NUMA nodes) and layout of the
ranks, in `tuning/` of the user's data directory. `HPCCOLL_TUNING=FILE` selects another table file,
`HPCCOLL_TUNING=off` selects none. Only rank 0 reads the environment and the file; it broadcasts the table, so all ranks
select the same algorithms. An unusable table file causes a warning, not an error.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from hpccoll.atomic_files import lock_beside, write_atomically
from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited
from hpccoll.selection.tuning_table import SCHEMA_FAMILY, TuningSite, TuningTable

if TYPE_CHECKING:
    from pathlib import Path

TUNING_VARIABLE, OFF = "HPCCOLL_TUNING", "off"
LOCK_LIMIT_S = 10.0
MOST_BYTES = 2**24  # of a table file
_CPUINFO, _NUMA_NODES = "/proc/cpuinfo", "/sys/devices/system/node"
_REMEDY = f"run `hpccoll tune` again, remove the file, or set {TUNING_VARIABLE}={OFF}"


def describe_site(mpi_library: str, ranks_per_node: Sequence[int], *, oversubscribed: bool) -> TuningSite:
    """Return the `TuningSite` of a job: MPI library, kind of host, and layout of ranks on nodes.

    The host is the one that runs this process. `mpi_library` has the library's name and version; `oversubscribed`
    states whether a node has more ranks than cores.
    """
    equal = len(set(ranks_per_node)) == 1
    first, nodes = ranks_per_node[0], len(ranks_per_node)
    ranks = f"{first} rank{'s' * (first > 1)}" if equal else f"{'+'.join(map(str, ranks_per_node))} ranks"
    where = "1 node" if nodes == 1 else f"{'each of ' * equal}{nodes} nodes"
    return TuningSite(mpi_library, describe_host(), f"{ranks} on {where}{', more than cores' * oversubscribed}")


@cache
def describe_host() -> str:
    """Return a description of the host's processor, cores and NUMA nodes, which is the same on hosts of one kind."""
    from pathlib import Path

    cores, numa = os.cpu_count() or 1, sum(1 for _ in Path(_NUMA_NODES).glob("node[0-9]*")) or 1
    return f"{_read_processor_name()}, {cores} cores, {numa} NUMA node{'s' * (numa > 1)}"


def _read_processor_name() -> str:
    """Return the model name in /proc/cpuinfo, or Python's name of the processor if there is none."""
    from pathlib import Path

    try:
        lines = Path(_CPUINFO).read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def default_table_path(site: TuningSite) -> Path:
    """Return the path in the user's data directory for the tuning table of `site`; the file need not exist."""
    from hashlib import blake2b

    from platformdirs import user_data_path

    digest = blake2b(f"{site.mpi}\n{site.host}\n{site.layout}".encode(), digest_size=4).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9.+]+", "-", f"{site.mpi} {site.layout}").strip("-")
    return user_data_path("hpccoll", appauthor=False) / "tuning" / f"{readable}-{digest}.json"


def find_table_path(site: TuningSite, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the tuning table that `auto` reads.

    The file may be missing. The result is None if `HPCCOLL_TUNING` is `off`.
    """
    from pathlib import Path

    named = environ.get(TUNING_VARIABLE, "")
    if named.lower() == OFF:
        return None
    return Path(named) if named else default_table_path(site)


def read_table(path: Path) -> TuningTable:
    """Return the tuning table in the file `path`; raise UsageError if it cannot be read or does not hold a table."""
    import json

    try:
        return TuningTable.from_json(json.loads(read_limited(path, MOST_BYTES).decode()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError, OverflowError) as error:  # UsageError, bad JSON, bad UTF-8 and `Infinity`
        raise UsageError(f"{path}: {error}") from error


def read_table_to_extend(path: Path, site: TuningSite) -> TuningTable:
    """Return the tuning table in the file `path`, or an empty one if it is missing or not a table of this version.

    A file that contains the word `hpccoll-tuning/` but cannot be parsed counts as a table of another version, also if
    it is damaged. Raises UsageError if the file must not be overwritten: if it does not contain this word, cannot be
    read, or is for another site.
    """
    try:
        if not path.exists():
            return TuningTable(site, ())
        table = read_table(path)
    except UsageError as error:
        if _names_schema(path):
            return TuningTable(site, ())
        raise UsageError(f"{error}; it is not overwritten: name another file with --output, or remove it") from error
    except OSError as error:
        raise _make_write_error(path, error) from error
    if table.site != site:
        raise UsageError(
            f"{path}: holds the table of {table.site.description}, this is {site.description}; "
            "name another file with --output"
        )
    return table


def _names_schema(path: Path) -> bool:
    """Whether the file `path` can be read, and contains the name of the schema of tuning tables."""
    try:
        return SCHEMA_FAMILY.encode() in path.read_bytes()
    except OSError:
        return False


def write_table(path: Path, table: TuningTable) -> None:
    """Write the tuning table to `path`, creating its folder and replacing the file atomically.

    Raises UsageError if the file cannot be written.
    """
    import json

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table.as_json(), indent=1) + "\n")
    except OSError as error:
        raise _make_write_error(path, error) from error


def extend_stored_table(path: Path, new: TuningTable) -> TuningTable:
    """Add the times of `new` to the tuning table in the file `path`, and return the whole table that the file then has.

    A lock keeps two jobs that tune at the same time from losing each other's times. Raises UsageError as
    `read_table_to_extend` and `write_table` do.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_beside(path, LOCK_LIMIT_S):
            table = read_table_to_extend(path, new.site).merge(new.series)
            write_table(path, table)
    except OSError as error:
        raise _make_write_error(path, error) from error
    return table


def _make_write_error(path: Path, error: OSError) -> UsageError:
    """Return (not raise) the UsageError that reports that a table cannot be written to `path`."""
    reason = error.strerror or error
    return UsageError(f"{path}: cannot write the tuning table ({reason}); name another file with --output")


def load_tuning_table(site: TuningSite, *, whole_job: bool) -> TuningTable | None:
    """Return the stored table of a site; None if it is missing or unusable. Warn on stderr about an unusable table.

    A table for another layout of ranks causes a warning only if `whole_job` states that the site is that of all ranks
    of the job. One rank should call this function and broadcast the table, because all ranks must use the same table.
    """
    path = find_table_path(site)
    if path is None:
        return None
    try:
        if not os.environ.get(TUNING_VARIABLE) and not path.exists():
            return None
        table = read_table(path)
    except (UsageError, OSError) as error:
        _warn(f"{error}; the tuning table is not used: {_REMEDY}")
        return None
    for name in ("mpi", "host", "layout"):
        stored, current = getattr(table.site, name), getattr(site, name)
        if stored != current:
            # Communicators of a part of the job have layouts of their own, for which a warning would be noise.
            if name != "layout" or whole_job:
                _warn(f"{path}: the tuning table is for {stored}, this is {current}; it is not used: {_REMEDY}")
            return None
    return table


@cache  # every new communicator reads the table
def _warn(message: str) -> None:
    """Print a warning on standard error, once per message."""
    sys.stderr.write(f"hpccoll: warning: {message}\n")
