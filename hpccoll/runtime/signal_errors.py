"""Distinguishes exceptions that the program's signal handlers raise from errors of the code that they interrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from traceback import walk_tb
from types import CodeType


def is_raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a currently installed signal handler has raised `error`, as a time limit by SIGALRM does."""
    handlers = set(_list_handlers())
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _list_handlers() -> Iterator[CodeType]:
    """Yield the code of each signal handler that is a function or method of Python, or an object with `__call__`."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
        if callable(handler) and code is not None:
            yield code
