"""Runs an example on the ranks of a communicator, and tells what this rank held before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.algorithms import Algorithm
from hpccoll.demo import in_hpccoll
from hpccoll.demo.examples import Example
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


@dataclass(frozen=True, slots=True)
class RankValues:
    """What one rank held: values as nested lists, numbers or None, in the order of the example's titles."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]


def run_example(example: Example, comm: Communicator, algorithm: Algorithm | None) -> RankValues:
    """Run every call of the example, each on arguments of its own. Collective.

    Args:
        example: what to run; `comm` has as many ranks as it asks for.
        comm: where.
        algorithm: what carries out the example's operation; None leaves every choice to the communicator.
    """
    before = tuple(_plain(value) for value in example.arguments(comm.rank))
    ranks = comm if algorithm is None else _Chosen(comm, algorithm)
    after: list[Any] = []
    for call in example.calls:
        arguments = example.arguments(comm.rank)
        comm.barrier()  # so that all ranks count from the same moment
        start = time.perf_counter()
        result = getattr(in_hpccoll, call)(ranks, *arguments)
        seconds = time.perf_counter() - start
        if example.operation is Operation.BARRIER:
            result = round(seconds, 4)
        after += [_plain(value) for value in (result if isinstance(result, tuple) else (result,))]
    return RankValues(before, tuple(after))


class _Chosen:
    """A communicator whose calls of one operation run with one algorithm."""

    def __init__(self, comm: Communicator, algorithm: Algorithm) -> None:
        self._comm, self._algorithm = comm, algorithm

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        return partial(found, algorithm=self._algorithm) if name == self._algorithm.operation.value else found


def _plain(value: Any) -> Any:
    """Return an array as nested lists, anything else as it is."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def format_value(value: Any) -> str:
    """Return a value for people: `[1, 2.5]`, `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"[{', '.join(format_value(each) for each in value)}]"
    return f"{value:.4f}" if value != int(value) else str(int(value))
