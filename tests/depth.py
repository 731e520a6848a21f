"""Which cases of a parametrised test run: in `make test`, few that contain each value; in `make test-rest`, the others.

`make test-full` runs all cases, also those with the marker `full`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any

import pytest


def keep(cases: Iterable[Any], is_representative: Callable[[Any], bool]) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`; those that are not representative get the marker `full`.

    Args:
        cases: the argument of the test in each case, or a tuple of its arguments.
        is_representative: whether a case also runs in `make test` or `make test-rest`, not only in `make test-full`.
    """
    return [case if is_representative(case) else mark_full(case) for case in cases]


def keep_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`; all but cases 0, `step`, 2 `step` ... get the marker `full`."""
    return [mark_full(case) if index % step else case for index, case in enumerate(cases)]


def mark_full(case: Any) -> Any:
    """Return a case (an argument, or a tuple of arguments) as a `pytest.param` with the marker `full`."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)


def choose_quick(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests of `make test`: of each test, as few cases as contain each value of each parameter.

    Tests with the marker `slow` are omitted. The choice depends on names and values alone, so all ranks of a
    session make the same one.
    """
    quick: set[pytest.Item] = set()
    for _, cases in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        allowed = [item for item in cases if item.get_closest_marker("slow") is None]
        quick.update(_cover_values(allowed))
    return quick


def _cover_values(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return cases that together contain each value of each parameter; each has the most values that were missing."""
    values = [_list_values(item) for item in cases]
    missing = set[Hashable]().union(*values)
    chosen = [] if missing else list(cases[:1])
    while missing:
        best = max(range(len(cases)), key=lambda index: len(values[index] & missing))
        missing -= values[best]
        chosen.append(cases[best])
    return chosen


def _list_values(item: pytest.Item) -> set[Hashable]:
    """Return the parameters of a case with their values; a value that cannot be compared is named by its index."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return set()
    return {(name, _name_value(value) or callspec.indices[name]) for name, value in callspec.params.items()}


def _name_value(value: object) -> str | None:
    """Return a name of a parameter's value that is the same on all ranks; None if there is none."""
    if isinstance(value, str | int | float | bool | bytes | None):
        return repr(value)
    name = getattr(value, "full_name", None) or getattr(value, "name", None) or getattr(value, "__name__", None)
    return name if isinstance(name, str) else None
