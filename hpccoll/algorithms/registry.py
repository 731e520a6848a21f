"""The registry of algorithms: the decorator `@algorithm`, the table that it fills, and the plans of an algorithm.

The modules of algorithms import this module, and `catalogue` imports the modules of all built-in algorithms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from hpccoll.plan import Cost, Nodes, Plan, Rounds

Make: TypeAlias = "Callable[..., Rounds]"
Result = TypeVar("Result")
RATES_MARK = "@"  # separates an algorithm's name from the rates of links, as in `weighted@4:4:1`
Period = int | Callable[..., int] | None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm for a collective operation.

    `parameters` has those of the names `root`, `chunks`, `nodes` and `rates` that are arguments of `make_rounds`: the
    root, the number of chunks, the ranks of each node (`Groups`), and the rates of links. `period` is a number (or a
    function of the arguments of `cost`) such that rank r + period acts like rank r, so that it suffices to simulate a
    few ranks; None if there is no such number. `grows_linearly` states that each further node adds the same time and
    the same bytes, so that the time of a million ranks follows from the times of a few nodes.
    """

    operation: Operation  # the operation that the plans implement
    name: str  # the algorithm's name, unique within the operation
    make_rounds: Make  # (rank, n, ...) -> Rounds; returns the lazy steps of the ranks in the array `rank`
    cost: Callable[..., Cost] | None  # (n, ...) -> Cost, the stated cost; None if the algorithm states no cost
    parameters: frozenset[str]
    period: Period = None
    uses_shared_memory: bool = False  # whether the rounds contain loads, stores or fences
    rates: tuple[int, ...] = ()  # the rates of the ranks' or nodes' links, in any unit, if `parameters` has them
    grows_linearly: bool = False
    file_plan: Plan | None = None  # the only plan, for one number of ranks and one root, if it was read from a file

    @property
    def full_name(self) -> str:
        """The name `operation/algorithm`, as on the command line."""
        return f"{self.operation.value}/{self.name}"

    @property
    def is_two_level(self) -> bool:
        """Whether the algorithm uses shared memory within nodes and messages between nodes."""
        return self.uses_shared_memory and "nodes" in self.parameters

    @property
    def only_ranks(self) -> int | None:
        """The number of ranks of the plan if the algorithm was read from the file of a plan; else None."""
        return self.file_plan.ranks if self.file_plan is not None else None

    def plan(self, ranks: int, root: int = 0, chunks: int = 1, nodes: Nodes = None) -> Plan:
        """Return the plan for `ranks` ranks; arguments that the algorithm does not use are ignored.

        `nodes` has the number of ranks on each node, in rank order, or the ranks of each node; None means a single
        node. Raises UsageError for a rank count or chunk count below 1, a root that is not a rank, or wrong ranks in
        `nodes`.
        """
        from hpccoll.plan.groups import Groups
        from hpccoll.plan.plan import Plan

        if ranks < 1 or chunks < 1 or not 0 <= root < ranks:
            raise UsageError(
                f"{self.full_name} cannot run with ranks={ranks}, root={root}, chunks={chunks}: "
                "need ranks >= 1, chunks >= 1 and 0 <= root < ranks"
            )
        if self.file_plan is not None:
            return self._get_file_plan(self.file_plan, ranks, root)
        values = {"root": root, "chunks": chunks, "nodes": Groups.from_nodes(ranks, nodes), "rates": self.rates}
        arguments: dict[str, Any] = {name: value for name, value in values.items() if name in self.parameters}

        def call_with_accepted(function: Callable[..., Result]) -> Result:
            """Return `function(ranks, ...)`, called with those of `arguments` that `function` has parameters for."""
            accepted = _list_parameters(function)
            return function(ranks, **{name: value for name, value in arguments.items() if name in accepted})

        return Plan(
            self.operation,
            self.name,
            ranks,
            root if self.operation.has_root else 0,
            lambda rank: self.make_rounds(rank, ranks, **arguments),
            call_with_accepted(self.cost) if self.cost is not None else None,
            call_with_accepted(self.period) if callable(self.period) else self.period,
        )

    def _get_file_plan(self, plan: Plan, ranks: int, root: int) -> Plan:
        """Return `plan`, which was read from a file; raise UsageError if it is for other `ranks` or another `root`."""
        if ranks != plan.ranks or (self.operation.has_root and root != plan.root):
            roots = [f" and root {number}" * self.operation.has_root for number in (plan.root, root)]
            raise UsageError(
                f"{self.full_name} is a plan for {plan.ranks} ranks{roots[0]}, not for {ranks} ranks{roots[1]}; "
                f"use --ranks {plan.ranks}" + f" --root {plan.root}" * self.operation.has_root
            )
        return plan


@cache
def _list_parameters(function: Callable[..., object]) -> frozenset[str]:
    """Return the names of a function's parameters."""
    return frozenset(inspect.signature(function).parameters)


REGISTERED: dict[tuple[Operation, str], Algorithm] = {}


def algorithm(
    operation: Operation,
    name: str,
    cost: Callable[..., Cost] | None = None,
    period: Period = None,
    *,
    uses_shared_memory: bool = False,
    grows_linearly: bool = False,
) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as the algorithm `operation/name` and returns it unchanged.

    Args:
        name: the name of the algorithm, from the literature where there is one.
        cost: returns the stated cost of a plan, which `check` compares with the real cost; None if none is stated.
        period: the number p for which rank r + p acts like rank r, or a function that returns p; None if there is no
            such number.
        uses_shared_memory: whether the plans have loads, stores or fences.
        grows_linearly: whether the time and the bytes of a plan grow by the same amount with each further node.
    """

    def register(make: Make) -> Make:
        """Register `make` as the algorithm and return `make`.

        A user's algorithm replaces a built-in one of the same name.
        """
        made = make_algorithm(operation, name, make, cost, period, uses_shared_memory=uses_shared_memory)
        made = replace(made, grows_linearly=grows_linearly)
        if make.__module__.startswith("hpccoll.algorithms."):
            REGISTERED.setdefault((operation, name), made)  # a user's algorithm of this name takes its place
        else:
            REGISTERED[operation, name] = made
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
    """Return an algorithm that is not registered; the arguments are those of the decorator `algorithm`.

    `make` returns the rounds of the algorithm's plans.
    """
    parameters = _list_parameters(make) & {"root", "chunks", "nodes", "rates"}
    return Algorithm(operation, name, make, cost, parameters, period, uses_shared_memory)


def get_registered(operation: Operation, name: str) -> Algorithm:
    """Return the registered algorithm `operation/name`.

    Raises UnknownNameError, which lists the known names, if there is no such algorithm. Only algorithms whose files are
    imported are registered: `catalogue.get_algorithm` imports all built-in ones. The name `weighted@4:4:1` stands for
    the algorithm `weighted` on links with the rates 4, 4 and 1.
    """
    base, at, rates = name.partition(RATES_MARK)
    known = REGISTERED.get((operation, base))
    if at and known is not None:
        return _set_rates(known, rates)
    if known is None:
        raise UnknownNameError(f"algorithm for {operation.value}", name, list_registered_names(operation))
    return known


def _set_rates(known: Algorithm, rates: str) -> Algorithm:
    """Return the algorithm `known` with the rates of links in the text `rates`, such as `4:4:1`.

    Raises UsageError if the rates are wrong.
    """
    words = rates.split(":")
    if "rates" not in known.parameters or not all(word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise UsageError(
            f"{known.full_name}{RATES_MARK}{rates}: rates are whole numbers above 0, joined by colons, such as "
            f"weighted{RATES_MARK}4:4:1, for an algorithm that depends on them"
        )
    return replace(known, name=f"{known.name}{RATES_MARK}{rates}", rates=tuple(map(int, words)))


def list_registered_names(operation: Operation) -> list[str]:
    """Return the sorted names of an operation's registered algorithms."""
    return [name for registered, name in sorted(REGISTERED, key=str) if registered is operation]
