"""Settings (variables and `configure`) of mpi4py programs: which collectives run over hpccoll, by which algorithms."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Protocol
from weakref import WeakSet

from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.units import parse_size

MODE: Final = "HPCCOLL_MPI4PY"
CHOICES: Final = "HPCCOLL_MPI4PY_ALGORITHMS"
AFTER: Final = "HPCCOLL_MPI4PY_AFTER"
SUMMARY: Final = "HPCCOLL_SUMMARY"
AUTO: Final = "auto"
SUM: Final = "sum"  # the default reduction
LOGICAL: Final = ("land", "lor", "lxor")  # reductions of MPI that hpccoll lacks
# MPI carries out small calls until a kind of calls and a communicator have had so many: hpccoll's first call of a kind
# takes 2 ms, and its first call in a process 150 ms; a later small call saves a few microseconds.
KIND_POINTS: Final = 1_000
COMM_POINTS: Final = 50_000
_MODES: Final = ("off", "collectives", "all")


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """The user's choice of an algorithm for an operation, for messages of `least` bytes or more, but less than `end`.

    If `end` is None, the messages have no upper limit.
    """

    operation: Operation
    algorithm: str
    least: int
    end: int | None

    def includes(self, nbytes: int) -> bool:
        """Whether the choice is for messages of `nbytes` bytes."""
        return self.least <= nbytes and (self.end is None or nbytes < self.end)


class ConfiguredCommunicator(Protocol):
    """A communicator that caches the algorithms that were selected for its collectives."""

    def forget_selections(self) -> None:
        """Clear the cached algorithms, because the user has changed the configuration."""


@dataclass(slots=True)
class Mpi4pyConfiguration:
    """The settings of `hpccoll.mpi4py` in this process, which must be equal on all ranks of the job.

    Args:
        mode: the collectives that run over hpccoll: "off" means none, "collectives" those of buffers, and "all" those
            of buffers and of Python objects.
        calls_before: how many small calls of each kind MPI carries out before hpccoll does; None for the default.
        choices: the user's choices of algorithms, the latest last.
        communicators: the communicators whose cached algorithms a new choice clears.
    """

    mode: str
    calls_before: int | None = None
    choices: list[AlgorithmChoice] = field(default_factory=list)
    communicators: WeakSet[ConfiguredCommunicator] = field(default_factory=WeakSet)

    @property
    def runs_collectives(self) -> bool:
        """Whether collectives of buffers, such as `Bcast`, run over hpccoll."""
        return self.mode != "off"

    @property
    def runs_objects(self) -> bool:
        """Whether collectives of Python objects, such as `bcast`, run over hpccoll."""
        return self.mode == "all"

    def find_algorithm(self, operation: Operation, nbytes: int) -> str:
        """Return the name of the user's latest choice of algorithm for an operation and message size, else `auto`."""
        for choice in reversed(self.choices):
            if choice.operation is operation and choice.includes(nbytes):
                return choice.algorithm
        return AUTO


def configure(operation: str, algorithm: str, *, least: str | int = 0, end: str | int | None = None) -> None:
    """Choose the algorithm of later collectives of mpi4py programs, by operation and message size.

    All ranks must make the same choices, after the same number of collectives. A later choice takes precedence over
    earlier choices. The environment variable HPCCOLL_MPI4PY_ALGORITHMS makes choices for programs that are not
    modified.

    Args:
        operation: the name in hpccoll or MPI, such as `all_reduce` or `Allreduce`.
        algorithm: the name of an algorithm for this operation, `auto`, or `mpi` for the MPI library's own collective.
        least: the smallest message size in bytes that the choice covers, such as 65536 or "64K". For operations with
            one block per rank, such as Allgather, the message size is that of all blocks together.
        end: the end of the range of sizes, exclusive; None means no limit.

    Raises:
        UnknownNameError: there is no such operation or algorithm.
        UsageError: a size is not a number of bytes.

    Example:
        >>> import hpccoll.mpi4py
        >>> hpccoll.mpi4py.configure("Allreduce", "ring", least="1M")
        >>> hpccoll.mpi4py.configure("Allreduce", "auto", least="1M")
    """
    configuration = get_configuration()
    configuration.choices.append(make_choice(operation, algorithm, least, end))
    for communicator in configuration.communicators:
        communicator.forget_selections()


def make_choice(operation: str, algorithm: str, least: str | int, end: str | int | None) -> AlgorithmChoice:
    """Return an `AlgorithmChoice` with checked names and sizes; arguments and errors are those of `configure`."""
    from hpccoll.algorithms import get_algorithm
    from hpccoll.selection import MPI_LIBRARY

    found = Operation.from_name(operation)
    if algorithm not in (AUTO, MPI_LIBRARY):
        get_algorithm(found, algorithm)
    sizes = [None if size is None else size if isinstance(size, int) else parse_size(size) for size in (least, end)]
    return AlgorithmChoice(found, algorithm, sizes[0] or 0, sizes[1])


@cache
def get_configuration() -> Mpi4pyConfiguration:
    """Return the one configuration of this process; the first call reads the environment variables.

    Raises:
        UsageError: an environment variable has an unknown value.
    """
    mode = os.environ.get(MODE, "") or "all"
    if mode not in _MODES:
        raise UsageError(f"{MODE}={mode} is not one of {', '.join(_MODES)}; set one of these, or unset it for all")
    return Mpi4pyConfiguration(mode, read_calls_before(), read_choices(os.environ.get(CHOICES, "")))


def read_calls_before() -> int | None:
    """Return the value of HPCCOLL_MPI4PY_AFTER: how many small calls of a kind MPI carries out first; None if unset.

    Raises:
        UsageError: the environment variable HPCCOLL_MPI4PY_AFTER is no number of calls.
    """
    given = os.environ.get(AFTER, "")
    if given and not given.isdecimal():
        raise UsageError(
            f"{AFTER}={given} is no number of calls; set 0 or more, or unset it for {KIND_POINTS} of a kind and "
            f"{COMM_POINTS} of a communicator"
        )
    return int(given) if given else None


def read_choices(given: str) -> list[AlgorithmChoice]:
    """Return the list of choices in `given`, a value of HPCCOLL_MPI4PY_ALGORITHMS.

    An example of a value is `Allreduce:64K-1M=ring,Bcast=mpi`.

    Raises:
        UnknownNameError: there is no such operation or algorithm.
        UsageError: `given` does not have the form of the example.
    """
    choices = []
    for item in filter(None, given.split(",")):
        place, equals, algorithm = item.partition("=")
        operation, _, sizes = place.partition(":")
        least, dash, end = sizes.partition("-")
        if not equals or (sizes and not dash):
            raise UsageError(
                f"{CHOICES}={given}: {item!r} is not OPERATION=ALGORITHM or OPERATION:LEAST-END=ALGORITHM; write for "
                "example Allreduce:64K-1M=ring,Bcast=mpi"
            )
        choices.append(make_choice(operation.strip(), algorithm.strip(), least or 0, end or None))
    return choices
