"""A user's own algorithm, `FILE.py:FUNCTION`: one function in one file, taken up beside those that are built in.

The function writes rounds as those of this package do. Which operation it carries out is said by the decorator
`@algorithm(Operation.ALL_REDUCE, "name", cost)`, or else by its name, which then contains the operation's
(`my_all_reduce`); without a decorator no cost is stated, and so none is held against the plan. Nothing is done with an
algorithm before `prove` has: what is wrong with it is the checker's message, what it raises is told by file and line.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import NoReturn

import numpy as np

from hpccoll.algorithms.registry import Algorithm, algorithm, list_algorithms
from hpccoll.errors import HpccollError, PlanError, UsageError
from hpccoll.plan import (
    NO_CHUNK,
    NO_PEER,
    Fence,
    Ints,
    Load,
    Move,
    Nodes,
    Operation,
    Plan,
    Proof,
    Region,
    Rounds,
    Step,
    Store,
    check,
)

_CHUNKS = (1, 2, 8)  # in which a pipelined algorithm is tried
_PREFIX = "hpccoll own "  # of the names of loaded modules: a space keeps them apart from any that can be imported


def is_file_reference(text: str) -> bool:
    """Whether `text` names a function in a file rather than an algorithm."""
    return text.endswith(".py") or ".py:" in text


def is_user_defined(each: Algorithm) -> bool:
    """Whether the algorithm was loaded from a user's file."""
    return each.make_rounds.__module__.startswith(_PREFIX)


def load_algorithm(reference: str) -> Algorithm:
    """Return the algorithm that `FILE.py:FUNCTION` names, registered under its name but not yet proven.

    Raises:
        UsageError: no such file or function, or nothing says which operation it carries out.
        HpccollError: the file raises when it is imported; the message names file and line.
    """
    path, colon, name = reference.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"{reference}: name a function in the file, as in {reference.rstrip(':')}:my_all_reduce")
    known = {each.full_name: each for each in list_algorithms() if not is_user_defined(each)}
    module = _imported(path)
    make = getattr(module, name, None)
    if not inspect.isfunction(make):
        functions = [key for key, value in vars(module).items() if _defined(value, module)]
        there = f"it has {', '.join(functions)}" if functions else "it has none"
        raise UsageError(f"{path} has no function {name!r}; {there}")
    for each in list_algorithms():
        if is_user_defined(each) and each.full_name in known:
            raise UsageError(f"{path} names an algorithm {each.full_name}, which is built in; give it another name")
    decorated = [each for each in list_algorithms() if each.make_rounds is make]
    if not decorated:
        algorithm(_operation(path, name), name)(make)
    return next(each for each in list_algorithms() if each.make_rounds is make)


def _defined(value: object, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__


def load_and_prove(names: Sequence[str], operations: Sequence[Operation], ranks: int, root: int = 0) -> tuple[str, ...]:
    """Return `names` with each `FILE.py:FUNCTION` replaced by the name of its algorithm, proven and registered.

    Args:
        names: algorithms' names, and references.
        operations: for one of these it must be.
        ranks, root: what it will run with.

    Raises:
        UsageError: no such file or function, or it carries out another operation.
        PlanError: the checker refutes it, or it raises.
    """
    adopted = []
    for name in names:
        if is_file_reference(name):
            own = load_algorithm(name)
            if own.operation not in operations:
                asked = ", ".join(operation.value for operation in operations)
                raise UsageError(f"{name} is an algorithm for {own.operation.value}, and not for {asked}; name that OP")
            for chunks in _CHUNKS if "chunks" in own.parameters else (1,):
                prove_algorithm(own, ranks, root if "root" in own.parameters else 0, chunks)
            name = own.name  # noqa: PLW2901 - from here on it is known by that name
        adopted.append(name)
    return tuple(adopted)


class _Fresh(SourceFileLoader):
    """Reads the source each time: a file that was edited within a second must not be taken from a cache."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError(path)


def _imported(path: str) -> ModuleType:
    name = _PREFIX + path
    spec = spec_from_file_location(name, path, loader=_Fresh(name, path))
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up there
    with _told(path):
        try:
            spec.loader.exec_module(module)
        except OSError as error:
            if error.filename == path:
                raise UsageError(f"{path} cannot be read: {error.strerror}") from error
            raise
    return module


def _operation(path: str, name: str) -> Operation:
    """Return the operation whose name is part of a function's; the longest, since all_reduce contains reduce."""
    found = [operation for operation in Operation if operation.value in name]
    if not found:
        valid = ", ".join(operation.value for operation in Operation)
        remedy = f"decorate it with @algorithm(Operation...., {name!r}), or let its name contain one of: {valid}"
        raise UsageError(f"{path}:{name} does not say which operation it carries out; {remedy}")
    return max(found, key=lambda operation: len(operation.value))


def prove_algorithm(
    each: Algorithm,
    ranks: int,
    root: int = 0,
    chunks: int = 1,
    counts: Sequence[int] = (0, 1, 7),
    nodes: Nodes = None,
) -> Proof:
    """Prove the plan of an algorithm on `ranks` ranks; a user's own also that each rank alone takes its part in it.

    Raises:
        PlanError: the plan is wrong (names round, rank, chunk), or the algorithm raises (names file and line).
    """
    with _told(f"{each.full_name} on {ranks} ranks"):
        plan = each.plan(ranks, root, chunks, nodes)
        if is_user_defined(each):
            _prove_returned(each, plan)
        proof = check(plan, counts)
        if is_user_defined(each):
            prove_single_rank_columns(plan)
    return proof


def _prove_returned(each: Algorithm, plan: Plan) -> None:
    rounds: object = plan.rounds()
    if not isinstance(rounds, Rounds):
        raise PlanError(f"{each.full_name} returned {type(rounds).__name__}; return Rounds(count, chunks, at)")
    for t in range(rounds.count):
        where, steps = f"{each.full_name} on {plan.ranks} ranks, round {t}", rounds.at(t)
        if not isinstance(steps, list) or not all(isinstance(step, Step) for step in steps):
            raise PlanError(f"{where}: at({t}) must return a list of Move, or of Load and Store, or of Fence")
        if not each.uses_shared_memory and not all(isinstance(step, Move) for step in steps):
            raise PlanError(f"{where} holds loads, stores or fences; say @algorithm(..., uses_shared_memory=True)")


def prove_single_rank_columns(plan: Plan) -> None:
    """Raise PlanError where one rank alone is told otherwise than among all: a rank is always an array.

    Cost: `ranks` times the moves of the plan.
    """
    whole = plan.rounds()
    for rank in range(plan.ranks):
        alone = plan.column(rank)
        for t in range(max(whole.count, alone.count)):
            alike = (alone.count, alone.chunks) == (whole.count, whole.chunks)
            if not alike or _part(alone.at(t), 0, 1) != _part(whole.at(t), rank, plan.ranks):
                where = f"{plan.name} on {plan.ranks} ranks, round {t}: rank {rank}"
                raise PlanError(f"{where} alone does something else than among all; `rank` is always an array")


def _part(steps: Sequence[Step], at: int, ranks: int) -> list[object]:
    """What the rank at that place of a column does: peers, chunks there and here, op."""

    def chunks(peer: int, region: Region) -> list[int]:
        ids = region.ids(ranks)[at].tolist() if peer != NO_PEER else []
        return [chunk for chunk in ids if chunk != NO_CHUNK]

    def part(step: Step) -> object:
        if isinstance(step, Fence):
            return _at(step.leader, at, ranks)
        if isinstance(step, Store):
            to = _at(step.dest, at, ranks)
            return to, chunks(to, step.local), chunks(to, step.remote)
        frm = _at(step.source, at, ranks)
        op = _at(step.op, at, ranks) if frm != NO_PEER else None
        if isinstance(step, Load):
            return frm, chunks(frm, step.remote), chunks(frm, step.local), op
        to = _at(step.dest, at, ranks)
        return to, frm, chunks(to, step.send), chunks(frm, step.recv), op

    return [(type(step).__name__, part(step)) for step in steps]


def _at(value: Ints, at: int, ranks: int) -> int:
    return int(np.broadcast_to(np.asarray(value), (ranks,))[at])


def format_user_location(error: BaseException) -> str:
    """Return ` (FILE, line N, in FUNCTION)` where a user's file raised or called what did; nothing elsewhere."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).startswith(_PREFIX):
            return f" ({frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name})"
    return ""


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn whatever a user's file raises into one paragraph that names file and line."""
    try:
        yield
    except HpccollError:
        raise
    except (Exception, SystemExit) as error:
        raise PlanError(f"{what} raised {type(error).__name__}: {error}{format_user_location(error)}") from error
