"""Runs the examples in the docstrings of the public API, on one rank or on each of several ranks."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import numpy as np

import hpccoll
from hpccoll.errors import HpccollError


def list_public() -> Iterator[tuple[str, Any]]:
    """Yield name and object of each public function, class and method, except exceptions."""
    for name in hpccoll.__all__:
        found = getattr(hpccoll, name)
        if not (isinstance(found, type) and issubclass(found, HpccollError)):
            yield name, found
    for name in dir(hpccoll.Communicator):
        if not name.startswith("_"):
            yield f"Communicator.{name}", getattr(hpccoll.Communicator, name)


def run_examples(name: str, documented: Any, comm: hpccoll.Communicator) -> str:
    """Run the examples of one docstring with `comm`, `hpccoll` and `np`; return the failures as a string."""
    globs = {"comm": comm, "hpccoll": hpccoll, "np": np}
    test = doctest.DocTestParser().get_doctest(documented.__doc__ or "", globs, name, None, 0)
    if not test.examples:
        return f"{name} has no example"
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append)
    return "".join(report)
