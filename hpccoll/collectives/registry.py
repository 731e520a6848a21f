"""How an algorithm becomes known: one decorator, which also states what the algorithm costs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.rounds import Rounds

Make = Callable[..., Rounds]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A named way to carry out an operation: `make(rank, n, ...)` writes its rounds, `cost(n, ...)` states its cost.

    `cost` is None where nothing is stated. `takes` holds what else both need: `root`, and `chunks` where the message is
    cut up and pipelined.
    """

    operation: Operation
    name: str
    make: Make
    cost: Callable[..., Cost] | None
    takes: frozenset[str]

    @property
    def full_name(self) -> str:
        """`operation/algorithm`, as the command line writes it."""
        return f"{self.operation.value}/{self.name}"

    @property
    def summary(self) -> str:
        """The first sentence of the algorithm's docstring."""
        return (inspect.getdoc(self.make) or "").split("\n", 1)[0]

    def plan(self, ranks: int, root: int = 0, chunks: int = 1) -> Plan:
        """Return the plan on `ranks` ranks; `root` and `chunks` count only where the algorithm takes them.

        Raises:
            UsageError: a rank count or chunk count below 1, or a root that is no rank.
        """
        if ranks < 1 or chunks < 1 or not 0 <= root < ranks:
            raise UsageError(
                f"{self.full_name} cannot run with ranks={ranks}, root={root}, chunks={chunks}: "
                "need ranks >= 1, chunks >= 1 and 0 <= root < ranks"
            )
        given = {name: value for name, value in (("root", root), ("chunks", chunks)) if name in self.takes}
        cost = None
        if self.cost is not None:
            asked = inspect.signature(self.cost).parameters
            cost = self.cost(ranks, **{name: value for name, value in given.items() if name in asked})
        return Plan(
            self.operation,
            self.name,
            ranks,
            root if self.operation.rooted else 0,
            lambda rank: self.make(rank, ranks, **given),
            cost,
        )


_REGISTERED: dict[tuple[Operation, str], Algorithm] = {}


def algorithm(operation: Operation, name: str, cost: Callable[..., Cost]) -> Callable[[Make], Make]:
    """Register the decorated function as `operation/name`.

    Args:
        operation: what the rounds must achieve; `check` proves that they do.
        name: the field's standard name.
        cost: (n) or (n, chunks) -> Cost, what `check` must find.
    """

    def register(make: Make) -> Make:
        _REGISTERED[operation, name] = describe(operation, name, make, cost)
        return make

    return register


def describe(operation: Operation, name: str, make: Make, cost: Callable[..., Cost] | None) -> Algorithm:
    """Return an algorithm that is not registered (a user's own, a variant in a test)."""
    takes = frozenset(inspect.signature(make).parameters) & {"root", "chunks"}
    return Algorithm(operation, name, make, cost, takes)


def registered() -> list[Algorithm]:
    """Return all algorithms, by operation and name."""
    return [_REGISTERED[key] for key in sorted(_REGISTERED, key=lambda key: (key[0].value, key[1]))]


@cache
def named(operation: Operation, name: str) -> Algorithm:
    """Return the algorithm, or raise UnknownNameError that lists the operation's."""
    found = _REGISTERED.get((operation, name))
    if found is None:
        raise UnknownNameError(f"algorithm for {operation.value}", name, names(operation))
    return found


def names(operation: Operation) -> list[str]:
    """Return the names of an operation's algorithms."""
    return [known for of, known in sorted(_REGISTERED, key=str) if of is operation]
