"""How an algorithm becomes known: one decorator, which also states what the algorithm costs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Cost, Groups, Nodes, Operation, Plan, Rounds

Make = Callable[..., Rounds]
Stated = TypeVar("Stated")
Period = int | Callable[..., int] | None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A named way to carry out an operation.

    Attributes:
        operation: the collective operation that the plans achieve.
        name: the algorithm's name within the operation.
        make_rounds: (rank, n, ...) -> Rounds, which writes the steps of the given ranks.
        cost: (n, ...) -> Cost, the stated cost; None where nothing is stated.
        parameters: the further arguments of `make_rounds`: `root`; `chunks` if it pipelines; `nodes` (`Groups`) if the
            plan depends on which ranks share a node.
        period: rank r + period does what rank r does (a number, or a function of the arguments of `cost`), so that a
            simulation needs a few ranks only; None where no such symmetry exists.
        uses_shared_memory: whether the rounds hold loads, stores or fences.
    """

    operation: Operation
    name: str
    make_rounds: Make
    cost: Callable[..., Cost] | None
    parameters: frozenset[str]
    period: Period = None
    uses_shared_memory: bool = False

    @property
    def full_name(self) -> str:
        """`operation/algorithm`, as the command line writes it."""
        return f"{self.operation.value}/{self.name}"

    @property
    def is_hybrid(self) -> bool:
        """Whether it loads and stores within nodes and sends messages between them."""
        return self.uses_shared_memory and "nodes" in self.parameters

    @property
    def summary(self) -> str:
        """The first sentence of the algorithm's docstring."""
        return (inspect.getdoc(self.make_rounds) or "").split("\n", 1)[0]

    def plan(self, ranks: int, root: int = 0, chunks: int = 1, nodes: Nodes = None) -> Plan:
        """Return the plan on `ranks` ranks; what the algorithm does not take does not count.

        Args:
            ranks: how many there are.
            root: who has or gets the message.
            chunks: into how many the message is cut and pipelined.
            nodes: how many ranks each node has, in rank order, or the ranks of each node; None for a single node.

        Raises:
            UsageError: a rank count or chunk count below 1, a root that is no rank, or nodes of other ranks.
        """
        if ranks < 1 or chunks < 1 or not 0 <= root < ranks:
            raise UsageError(
                f"{self.full_name} cannot run with ranks={ranks}, root={root}, chunks={chunks}: "
                "need ranks >= 1, chunks >= 1 and 0 <= root < ranks"
            )
        could = {"root": root, "chunks": chunks, "nodes": Groups.from_nodes(ranks, nodes)}
        given: dict[str, Any] = {name: value for name, value in could.items() if name in self.parameters}

        def stated(of: Callable[..., Stated]) -> Stated:
            asked = inspect.signature(of).parameters
            return of(ranks, **{name: value for name, value in given.items() if name in asked})

        return Plan(
            self.operation,
            self.name,
            ranks,
            root if self.operation.has_root else 0,
            lambda rank: self.make_rounds(rank, ranks, **given),
            stated(self.cost) if self.cost is not None else None,
            stated(self.period) if callable(self.period) else self.period,
        )


_REGISTERED: dict[tuple[Operation, str], Algorithm] = {}


def algorithm(
    operation: Operation,
    name: str,
    cost: Callable[..., Cost] | None = None,
    period: Period = None,
    *,
    uses_shared_memory: bool = False,
) -> Callable[[Make], Make]:
    """Register the decorated function as `operation/name`.

    Args:
        operation: what the rounds must achieve; `check` proves that they do.
        name: the field's standard name.
        cost: (n) or (n, chunks) -> Cost, what `check` must find; None where nothing is stated (a user's own).
        period: after how many ranks all do the same again; `simulate` holds a sample of ranks against it.
        uses_shared_memory: whether its rounds hold loads, stores or fences.
    """

    def register(make: Make) -> Make:
        _REGISTERED[operation, name] = make_algorithm(
            operation, name, make, cost, period, uses_shared_memory=uses_shared_memory
        )
        return make

    return register


def make_algorithm(
    operation: Operation,
    name: str,
    make: Make,
    cost: Callable[..., Cost] | None = None,
    period: Period = None,
    *,
    uses_shared_memory: bool = False,
) -> Algorithm:
    """Return an algorithm that is not registered (a user's own, a variant in a test)."""
    parameters = frozenset(inspect.signature(make).parameters) & {"root", "chunks", "nodes"}
    return Algorithm(operation, name, make, cost, parameters, period, uses_shared_memory)


def list_algorithms() -> list[Algorithm]:
    """Return all algorithms, by operation and name."""
    return [_REGISTERED[key] for key in sorted(_REGISTERED, key=lambda key: (key[0].value, key[1]))]


@cache
def get_algorithm(operation: Operation, name: str) -> Algorithm:
    """Return the algorithm, or raise UnknownNameError that lists the operation's."""
    found = _REGISTERED.get((operation, name))
    if found is None:
        raise UnknownNameError(f"algorithm for {operation.value}", name, list_algorithm_names(operation))
    return found


def list_algorithm_names(operation: Operation) -> list[str]:
    """Return the names of an operation's algorithms."""
    return [known for of, known in sorted(_REGISTERED, key=str) if of is operation]
