"""Finds how the two sides of a comparison differ in machines, software versions and layout of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpccoll.compare.measured_runs import ComparedSide

UNKNOWN = "unknown"
_FIELDS = ("hosts", "cores", "ranks", "nodes", "devices", "oversubscribed")


def list_differences(a: ComparedSide, b: ComparedSide) -> list[str]:
    """Return a string for each field in which the runs of A and B differ, such as `hosts: A node1, B node2`."""
    versions = [run.environment.get("versions") or {} for side in (a, b) for run in side.runs]
    packages = sorted({name for by_name in versions for name in by_name})
    found_a, found_b = _describe_side(a, packages), _describe_side(b, packages)
    return [f"{name}: A {found_a[name]}, B {found_b[name]}" for name in found_a if found_a[name] != found_b[name]]


def have_same_mpi(*sides: ComparedSide) -> bool:
    """Whether all runs of all sides used the same version of the same MPI library, or no run recorded one."""
    versions = {_get_version(run.environment, "mpi") for side in sides for run in side.runs}
    return len(versions) == 1


def _describe_side(side: ComparedSide, packages: Sequence[str]) -> dict[str, str]:
    """Return, as strings by name, the hosts, cores, ranks and other fields of a side, and its versions of `packages`.

    If the runs of the side have different values of a field, the values are joined by `or`.
    """
    environments = [run.environment for run in side.runs]
    values = {name: _join(_format_value(environment.get(name)) for environment in environments) for name in _FIELDS}
    return values | {name: _join(_get_version(environment, name) for environment in environments) for name in packages}


def _get_version(environment: Mapping[str, Any], package: str) -> str:
    """Return the version of a package in a run's record `environment`, or `unknown`."""
    versions = environment.get("versions")
    return str((versions.get(package) if isinstance(versions, Mapping) else None) or UNKNOWN)


def _format_value(value: Any) -> str:
    """Return a record's value as a string: a list as its different values, and None as `unknown`."""
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(str(item) for item in value)) or "none"
    return UNKNOWN if value is None else str(value)


def _join(values: Iterable[str]) -> str:
    """Return the different values, joined by the word `or`."""
    return " or ".join(dict.fromkeys(values))
