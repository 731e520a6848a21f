"""Splits long parametrisations: `make test` runs a few representatives, `make test-full` all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def keep(cases: Iterable[Any], is_representative: Callable[[Any], bool]) -> list[Any]:
    """Return the cases as parameters; those that are not representative get the marker `full`.

    Args:
        cases: parameters of one test; a tuple holds several arguments.
        is_representative: whether a case runs in `make test`.
    """
    return [case if is_representative(case) else mark_full(case) for case in cases]


def keep_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters; all but every `step`-th one, from the first, get the marker `full`."""
    return [mark_full(case) if index % step else case for index, case in enumerate(cases)]


def mark_full(case: Any) -> Any:
    """Return a case as a parameter with the marker `full`."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
