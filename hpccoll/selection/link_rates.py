"""The measured rates of nodes' links, which `hpccoll preflight --save` and `hpccoll tune` store for `algorithm="auto"`.

One file in the user's data directory has the rates of all hosts that were measured. `HPCCOLL_LINKS=FILE` selects
another file, `HPCCOLL_LINKS=off` none. If the rates of the nodes' links differ, `auto` runs a weighted all_reduce for
long messages.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hpccoll.atomic_files import lock_beside, write_atomically
from hpccoll.errors import UsageError
from hpccoll.private_files import read_limited

if TYPE_CHECKING:
    from pathlib import Path

HostRates: TypeAlias = Mapping[str, tuple[float, float]]  # GB/s of a host's uplink and downlink
LINKS_VARIABLE, OFF = "HPCCOLL_LINKS", "off"
SCHEMA = "hpccoll-links/1"
LOCK_LIMIT_S = 10.0
MOST_BYTES = 2**24
EQUAL_RATIO = 1.15  # links whose rates differ by less are treated as equal
_UNITS, _MOST_UNITS = 10, 10**6  # the relative rate of the slowest link; the largest relative rate


def find_links_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the file of link rates; the file may be missing. Return None if HPCCOLL_LINKS is "off"."""
    from pathlib import Path

    from platformdirs import user_data_path

    named = environ.get(LINKS_VARIABLE, "")
    if named.lower() == OFF:
        return None
    return Path(named) if named else user_data_path("hpccoll", appauthor=False) / "links.json"


def read_links(path: Path) -> dict[str, tuple[float, float]]:
    """Return the pair (GB/s of uplink, GB/s of downlink) of each host in the file `path`, by host name.

    The result is empty if the file is missing. Raises UsageError if the file cannot be read or does not hold link
    rates.
    """
    try:
        return _parse_links(json.loads(read_limited(path, MOST_BYTES).decode()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path}: holds no link rates ({reason}); remove it and run hpccoll preflight --save"
        ) from error


def _parse_links(data: Any) -> dict[str, tuple[float, float]]:
    """Return the pair (GB/s of uplink, GB/s of downlink) of each host in a file's parsed JSON, by host name.

    Raises ValueError, TypeError or KeyError if the data is damaged.
    """
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r} is not {SCHEMA}")
    rates = {str(host): (float(up), float(down)) for host, (up, down) in data["rates_GBps"].items()}
    if wrong := [host for host, both in rates.items() if not all(0 < rate < math.inf for rate in both)]:
        raise ValueError(f"{wrong[0]} has the rates {rates[wrong[0]]} GB/s")
    return rates


def save_links(path: Path, rates: HostRates) -> None:
    """Add the rates of measured hosts to the file `path`; raise UsageError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_beside(path, LOCK_LIMIT_S):
            stored = read_links(path) | {host: (up, down) for host, (up, down) in rates.items()}
            write_atomically(path, json.dumps({"schema": SCHEMA, "rates_GBps": stored}, indent=1) + "\n")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot write the link rates ({error.strerror or error}); set {LINKS_VARIABLE}"
        ) from error


def find_relative_rates(rates: HostRates) -> tuple[int, ...] | None:
    """Return the rates of the hosts' links, scaled to whole numbers with 10 for the slowest, in the order of `rates`.

    The result is None if the rates differ by less than 15 %. The rate of a link is that of its slower direction.
    """
    slower = [min(both) for both in rates.values()]
    least = min(slower)
    if max(slower) < EQUAL_RATIO * least:
        return None
    return tuple(min(round(_UNITS * rate / least), _MOST_UNITS) for rate in slower)


def load_link_rates(hosts: Sequence[str]) -> dict[str, tuple[float, float]] | None:
    """Return the stored pair (GB/s of uplink, GB/s of downlink) of each host, by host name without the domain.

    `hosts` has the host of each node. The result is None if a host's rates are unknown, there are fewer than two hosts,
    or several nodes are on one host.
    """
    short = [host.partition(".")[0] for host in hosts]
    if len(short) < 2 or len(set(short)) < len(short):
        return None  # nodes on one host share its link
    path = find_links_path()
    try:
        stored = {} if path is None else read_links(path)
    except UsageError:
        return None
    return {host: stored[host] for host in short} if all(host in stored for host in short) else None


def load_relative_rates(hosts: Sequence[str]) -> tuple[int, ...] | None:
    """Return the stored rates of the hosts' links, scaled to whole numbers with 10 for the slowest link.

    The result is None if the rates are unknown or differ by less than 15 %; a damaged file counts as a missing one. One
    rank should call this and broadcast the result, because all ranks must select the same algorithm.
    """
    rates = load_link_rates(hosts)
    return None if rates is None else find_relative_rates(rates)
