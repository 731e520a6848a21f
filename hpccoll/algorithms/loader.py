"""Loader of a user's own algorithm, `FILE.py:FUNCTION` or `FILE.json`, which can then be used like the built-in ones.

A JSON file holds the plan for one number of ranks, as `hpccoll export` and `hpccoll synthesize` write it.

The user's function returns `Rounds`, as the built-in algorithms do. The decorator `@algorithm(Operation.ALL_REDUCE,
"name", cost)` states the function's operation, name and cost. Without the decorator, the function's name must contain
the name of an operation (`my_all_reduce`), and `check` has no cost to verify. Prove a loaded algorithm
(`prove_algorithm`) before using it. Exceptions in the user's code become errors that name file and line.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import NoReturn

import numpy as np

from hpccoll.algorithms import registry
from hpccoll.algorithms.catalogue import list_algorithms
from hpccoll.algorithms.plan_files import has_plan_suffix, load_plan
from hpccoll.algorithms.registry import Algorithm, algorithm, make_algorithm
from hpccoll.errors import HpccollError, PlanError, UsageError
from hpccoll.plan import (
    NO_CHUNK,
    NO_PEER,
    Count,
    Fence,
    IntArray,
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
from hpccoll.plan.proof.symmetric_proof import can_prove_by_symmetry, prove_by_symmetry
from hpccoll.units import format_count

_CHUNKS = (1, 2, 8)  # chunk counts with which a pipelined algorithm is proven
MOST_FULLY_PROVEN = 1024  # most ranks for which a symmetric plan is proven without use of its symmetry
_PREFIX = "hpccoll own "  # starts the names of loaded modules; no importable module has a space in its name


def is_file_reference(text: str) -> bool:
    """Whether `text` has the form of a file (.json, .xml, .py, .py:FUNCTION), not that of an algorithm's name."""
    return has_plan_suffix(text) or text.endswith(".py") or ".py:" in text


def is_user_defined(known: Algorithm) -> bool:
    """Whether the algorithm was loaded from a user's file."""
    return known.make_rounds.__module__.startswith(_PREFIX)


def load_algorithm(reference: str) -> Algorithm:
    """Load the algorithm that `FILE.py:FUNCTION`, `FILE.json` or `FILE.xml` refers to, register it, and return it.

    A Python file is executed, and its function is not proven. `FILE.json` may be a plan, which is not proven, and
    `FILE.json` and `FILE.xml` may be published schedules, which are proven. A plan or schedule becomes an algorithm
    with the name of the file without its suffix.

    Raises:
        UsageError: no such file, function or plan, an unknown operation, or the name of a built-in algorithm.
        HpccollError: the file raises an exception; the message names file and line.
    """
    if has_plan_suffix(reference):
        return _register_plan(load_plan(reference))
    path, colon, name = reference.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"{reference}: name a function in the file, as in {reference.rstrip(':')}:my_all_reduce")
    built_in = {known.full_name for known in list_algorithms() if not is_user_defined(known)}
    module = import_user_file(path)
    function = getattr(module, name, None)
    if not inspect.isfunction(function):
        functions = [value for value in vars(module).values() if inspect.isfunction(value)]
        names = [function.__name__ for function in functions if function.__module__ == module.__name__]
        raise UsageError(f"{path} has no function {name!r}; it has {', '.join(names) if names else 'none'}")
    for known in list_algorithms():
        if is_user_defined(known) and known.full_name in built_in:
            raise UsageError(f"{path} names an algorithm {known.full_name}, which is built in; give it another name")
    if not any(known.make_rounds is function for known in list_algorithms()):
        algorithm(_infer_operation(path, name), name)(function)
    return next(known for known in list_algorithms() if known.make_rounds is function)


def _register_plan(plan: Plan) -> Algorithm:
    """Register a plan that was read from a file, and return it as an algorithm for this plan's number of ranks only."""
    known = registry.REGISTERED.get((plan.operation, plan.algorithm))
    if known is not None and known.file_plan is None:
        raise UsageError(f"the file has the name of the algorithm {known.full_name}; give the file another name")

    def make_rounds(rank: IntArray, n: int) -> Rounds:  # noqa: ARG001 - the plan is for one number of ranks
        """Return the rounds of the loaded plan for the ranks in the array `rank`; its number of ranks n is not used."""
        return plan.make(rank)

    make_rounds.__module__ = _PREFIX + plan.algorithm
    one_sided = any(not isinstance(step, Move) for steps in plan.rounds() for step in steps)
    made = make_algorithm(plan.operation, plan.algorithm, make_rounds, uses_shared_memory=one_sided)
    parameters = frozenset(["root"] if plan.operation.has_root else [])
    registry.REGISTERED[plan.operation, plan.algorithm] = loaded = replace(made, parameters=parameters, file_plan=plan)
    return loaded


def load_and_prove(names: Sequence[str], operations: Sequence[Operation], ranks: int, root: int = 0) -> tuple[str, ...]:
    """Load and prove every reference to a file in `names`, such as `FILE.py:FUNCTION`; return the algorithms' names.

    Args:
        names: names of algorithms in the registry, which are returned unchanged, and references to files.
        operations: the operations that a loaded algorithm may implement.
        ranks: the number of ranks to prove loaded algorithms for.

    Raises:
        UsageError: no such file or function, or the function implements another operation.
        PlanError: the algorithm is wrong, or it raises an exception.
    """
    loaded = []
    for name in names:
        if not is_file_reference(name):
            loaded.append(name)
            continue
        own = load_algorithm(name)
        if own.operation not in operations:
            valid = ", ".join(operation.value for operation in operations)
            raise UsageError(f"{name} is an algorithm for {own.operation.value}, not for {valid}; ask for that OP")
        for chunks in _CHUNKS if "chunks" in own.parameters else (1,):
            prove_algorithm(own, ranks, root if "root" in own.parameters else 0, chunks)
        loaded.append(own.name)
    return tuple(loaded)


class _UncachedLoader(SourceFileLoader):
    """Imports a source file without the bytecode cache, which misses edits within the same second."""

    def path_stats(self, path: str) -> NoReturn:
        """Raise OSError, which makes the base class ignore the bytecode cache."""
        raise OSError(path)


def import_user_file(path: str, error_type: type[HpccollError] = PlanError) -> ModuleType:
    """Execute a Python file and return it as a module.

    Exceptions in the file are raised as `error_type`, whose message names file and line.
    """
    name = _PREFIX + path
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, path))
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module in sys.modules
    with _raise_user_error(path, error_type):
        try:
            spec.loader.exec_module(module)
        except OSError as error:
            if error.filename == path:
                remedy = "write FILE.py:FUNCTION with the path of a file"
                raise UsageError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
            raise
    return module


def _infer_operation(path: str, name: str) -> Operation:
    """Return the operation that the function name `name` contains; "all_reduce" wins over "reduce".

    Raises UsageError, which names the file `path`, if the name contains no operation.
    """
    matches = [operation for operation in Operation if operation.value in name]
    if not matches:
        valid = ", ".join(operation.value for operation in Operation)
        remedy = f"decorate it with @algorithm(Operation...., {name!r}), or let its name contain one of: {valid}"
        raise UsageError(f"{path}:{name} does not name its operation; {remedy}")
    return max(matches, key=lambda operation: len(operation.value))


def prove_algorithm(
    candidate: Algorithm,
    ranks: int,
    root: int = 0,
    chunks: int = 1,
    counts: Sequence[Count] = (0, 1, 7),
    nodes: Nodes = None,
) -> Proof:
    """Prove the plan of `candidate` on `ranks` ranks in this process, without messages; return the proof.

    For a user's own algorithm, also check the returned types, and that the function returns the same steps for a rank
    when called for that rank alone as when called for all ranks.

    Args:
        counts: the element counts for which the sizes of sends must equal those of their receives.
        nodes: the number of ranks on each node, or the ranks of each node; None for a single node.

    Raises PlanError if the plan is wrong (the message names round, rank and chunk) or the algorithm raises an
    exception.
    """
    with _raise_user_error(f"{candidate.full_name} on {format_count(ranks, 'rank')}"):
        plan = candidate.plan(ranks, root, chunks, nodes)
        if is_user_defined(candidate):
            _check_returned_types(candidate, plan)
        uses_symmetry = plan.ranks > MOST_FULLY_PROVEN and can_prove_by_symmetry(plan)
        proof = prove_by_symmetry(plan) if uses_symmetry else check(plan, counts)
        if is_user_defined(candidate):
            prove_single_rank_columns(plan)
    return proof


def _check_returned_types(candidate: Algorithm, plan: Plan) -> None:
    """Raise PlanError unless the algorithm's function returns Rounds of lists of steps.

    The steps must be Move steps, unless the algorithm is declared with `uses_shared_memory`.
    """
    rounds: object = plan.rounds()
    if not isinstance(rounds, Rounds):
        raise PlanError(f"{candidate.full_name} returned {type(rounds).__name__}; return Rounds(count, chunks, at)")
    for t in range(rounds.count):
        where, steps = f"{candidate.full_name} on {format_count(plan.ranks, 'rank')}, round {t}", rounds.at(t)
        if not isinstance(steps, list) or not all(isinstance(step, Step) for step in steps):
            raise PlanError(f"{where}: at({t}) must return a list of Move, or of Load and Store, or of Fence steps")
        if not candidate.uses_shared_memory and not all(isinstance(step, Move) for step in steps):
            raise PlanError(f"{where} holds loads, stores or fences; write @algorithm(..., uses_shared_memory=True)")


def prove_single_rank_columns(plan: Plan) -> None:
    """Raise PlanError if a rank's steps differ between a call for that rank alone and a call for all ranks.

    An algorithm that treats `rank` as a number, not an array, gives other steps for all ranks than for each rank alone.
    The check computes the plan once per rank.
    """
    whole = plan.rounds()
    for rank in range(plan.ranks):
        alone = plan.column(rank)
        same_shape = (alone.count, alone.chunks) == (whole.count, whole.chunks)
        for t in range(max(whole.count, alone.count)):
            if not same_shape or _take_rank(alone.at(t), 0, 1) != _take_rank(whole.at(t), rank, plan.ranks):
                where = f"{plan.name} on {format_count(plan.ranks, 'rank')}, round {t}: rank {rank}"
                raise PlanError(f"{where} alone has other steps than among all ranks; `rank` is always an array")


def _take_rank(steps: Sequence[Step], index: int, ranks: int) -> list[object]:
    """Return the steps of one rank as values that can be compared: peers, chunks and operations.

    `index` is the position of the rank in the arrays of `steps`, and `ranks` the number of ranks in them.
    """

    def take(value: Ints) -> int:
        """Return the number of the rank at position `index` in `value`, one number for all ranks or one for each."""
        return int(np.broadcast_to(np.asarray(value), (ranks,))[index])

    def list_chunks(peer: int, region: Region) -> list[int]:
        """Return the chunks of the rank at position `index` in a region; none if its `peer` is -1."""
        ids = region.ids(ranks)[index].tolist() if peer != NO_PEER else []
        return [chunk for chunk in ids if chunk != NO_CHUNK]

    def take_fields(step: Step) -> object:
        """Return the peers, chunks and operation of the rank at position `index` in a step; a fence's leader."""
        if isinstance(step, Fence):
            return take(step.leader)
        if isinstance(step, Store):
            dest = take(step.dest)
            return dest, list_chunks(dest, step.local), list_chunks(dest, step.remote)
        source = take(step.source)
        op = take(step.op) if source != NO_PEER else None
        if isinstance(step, Load):
            return source, list_chunks(source, step.remote), list_chunks(source, step.local), op
        dest = take(step.dest)
        return dest, source, list_chunks(dest, step.send), list_chunks(source, step.recv), op

    return [(type(step).__name__, take_fields(step)) for step in steps]


def format_user_location(error: BaseException) -> str:
    """Return ` (FILE, line N, in FUNCTION)` of the last user code in an error's traceback, else an empty string."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).startswith(_PREFIX):
            return f" ({frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name})"
    return ""


@contextmanager
def _raise_user_error(subject: str, error_type: type[HpccollError] = PlanError) -> Iterator[None]:
    """Context manager that turns exceptions of its body, except HpccollErrors, into `error_type`.

    The message begins with `subject` and names the line of the user's file.
    """
    try:
        yield
    except HpccollError:
        raise
    except (Exception, SystemExit) as error:
        raise error_type(f"{subject} raised {type(error).__name__}: {error}{format_user_location(error)}") from error
