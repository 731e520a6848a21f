"""Runs an example on the ranks of a communicator and collects each rank's values before and after the run."""

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
    """One rank's arguments (`before`) and results (`after`) of an example, as nested lists, numbers or None."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]


def run_example(example: Example, comm: Communicator, algorithm: Algorithm | None) -> RankValues:
    """Run an example on the ranks of `comm`, and return this rank's arguments and results. Collective over `comm`.

    Args:
        example: the example; each of its calls gets new arguments.
        comm: a communicator with `example.ranks` ranks.
        algorithm: the algorithm that runs the example's operation; None lets `comm` select one.
    """
    before = tuple(_as_list(value) for value in example.make_arguments(comm.rank))
    chosen_comm = comm if algorithm is None else _CommunicatorWithAlgorithm(comm, algorithm)
    after: list[Any] = []
    for call in example.calls:
        arguments = example.make_arguments(comm.rank)
        comm.barrier()  # so that all ranks start the clock at the same moment
        start = time.perf_counter()
        result = getattr(in_hpccoll, call)(chosen_comm, *arguments)
        seconds = time.perf_counter() - start
        if example.operation is Operation.BARRIER:
            result = round(seconds, 4)
        after += [_as_list(value) for value in (result if isinstance(result, tuple) else (result,))]
    return RankValues(before, tuple(after))


class _CommunicatorWithAlgorithm:
    """Wraps a communicator so that calls of one operation, that of `algorithm`, run this algorithm."""

    def __init__(self, comm: Communicator, algorithm: Algorithm) -> None:
        self._comm, self._algorithm = comm, algorithm

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._comm, name)
        if name != self._algorithm.operation.value:
            return attribute
        return partial(attribute, algorithm=self._algorithm)


def _as_list(value: Any) -> Any:
    """Return an array as nested lists, any other value unchanged."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def format_value(value: Any) -> str:
    """Return a value as a string to print: `[1, 2.5000]` for a list, `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"[{', '.join(format_value(element) for element in value)}]"
    return f"{value:.4f}" if value != int(value) else str(int(value))
