"""Whether a measurement that was read can have been written: its fields have the types and ranges of the schema.

A file may have been edited, or made by something else. What would break a table or an axis is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.measure.record import CollectiveRecord


def require_sound(record: CollectiveRecord) -> None:
    """Raise UsageError, naming field and value, unless every field has a value that is ever written."""
    values = {name: getattr(record.row, name) for name in _FIELDS if name not in ("wrong", "bound_us")}
    for name, value in (values | {"wrong": record.wrong, "bound_us": record.bound_us}).items():
        what, sound = _FIELDS[name]
        if not sound(value):
            raise UsageError(f"{name} must be {what}, not {str(value)[:40]!r}; measure that row again")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _or_null(sound: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or sound(value)


def _time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "engine": ("a text", _text),
    "algorithm": ("a text or null", _or_null(_text)),
    "buffer": ("a text", _text),
    "in_place": ("true or false", lambda value: isinstance(value, bool)),
    "nbytes": ("a whole number", _whole(0)),
    "count": ("a whole number", _whole(0)),
    "dtype": ("a text", _text),
    "redop": ("a text or null", _or_null(_text)),
    "root": ("a whole number or null", _or_null(_whole(0))),
    "ranks": ("a whole number above 0", _whole(1)),
    "nodes": ("a whole number above 0", _whole(1)),
    "wrong": ("a whole number or null", _or_null(_whole(0))),
    "bound_us": ("a time or null", _or_null(_time)),
}
