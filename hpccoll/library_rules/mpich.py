"""MPICH's files of decisions: JSON trees that select an algorithm, and a composition of levels, for every collective.

A file replaces all built-in decisions, so it contains the built-in decisions and the added rules. MPICH's library
contains its decisions as strings of JSON. `read_default_trees` reads the decisions from the installed library, so that
written files fit the measured release.

MPICH decides twice. The tree of device `ch4` selects a composition: how collectives within nodes and between nodes are
combined. A composition without levels runs an algorithm, which the tree of algorithms selects. A rule for an algorithm
stands both in the tree of compositions and in the tree of algorithms.

The conditions of a file are tried from the first to the last. The last of several conditions on sizes must be `any`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hpccoll.errors import UnavailableError
from hpccoll.library_rules.rules import LibraryAlgorithm, LibraryRules
from hpccoll.plan import Operation

# From a condition to the tree below it; an algorithm's tree has its parameters.
DecisionTree: TypeAlias = dict[str, Any]
PAGE = 4096  # MPICH maps a file and needs a zero after it, which a file of whole pages does not have
LARGEST = 2**31 - 1  # MPICH reads sizes as int
_NAMES = {
    Operation.ALL_GATHER: "Allgather",
    Operation.ALL_REDUCE: "Allreduce",
    Operation.ALL_TO_ALL: "Alltoall",
    Operation.BARRIER: "Barrier",
    Operation.BROADCAST: "Bcast",
    Operation.REDUCE: "Reduce",
    Operation.REDUCE_SCATTER: "Reduce_scatter_block",
}
# For each operation, MPICH's compositions by number (from 1), and the composition that runs an algorithm.
COMPOSITIONS = {
    Operation.ALL_GATHER: (("alpha", "beta"), "beta"),
    Operation.ALL_REDUCE: (("alpha", "beta", "gamma", "delta"), "beta"),
    Operation.ALL_TO_ALL: (("alpha", "beta"), "beta"),
    Operation.BARRIER: (("alpha", "beta"), "beta"),
    Operation.BROADCAST: (("alpha", "beta", "gamma"), "gamma"),
    Operation.REDUCE: (("alpha", "beta", "gamma"), "gamma"),
}
_TOTAL = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)  # sizes that count all ranks' blocks


@dataclass(frozen=True, slots=True)
class AlgorithmFacts:
    """An MPICH algorithm's parameters, and conditions for the calls that it supports, as decision files write them."""

    parameters: tuple[str, ...] = ()  # the algorithm's parameters, with the values that MPICH uses by default
    conditions: tuple[str, ...] = ()  # conditions on calls that the algorithm supports; keys of _CONDITIONS, or `count`


_EXCHANGE = ("k=2", "single_phase_recv=0")
_SUM = "is_commutative"
# MPICH's algorithms to measure, without algorithms whose parameters a file cannot set.
# The algorithms of nonblocking collectives (`nb`) are left out, too.
# Algorithms that call the collective again on parts of the communicator (`smp`) are also left out.
ALGORITHMS: Mapping[Operation, Mapping[str, AlgorithmFacts]] = {
    Operation.ALL_GATHER: {
        "brucks": AlgorithmFacts(),
        "recursive_doubling": AlgorithmFacts(),
        "ring": AlgorithmFacts(),
        "recexch_doubling": AlgorithmFacts(_EXCHANGE),
        "recexch_halving": AlgorithmFacts(_EXCHANGE),
    },
    Operation.ALL_REDUCE: {
        "recursive_doubling": AlgorithmFacts(),
        "reduce_scatter_allgather": AlgorithmFacts((), (_SUM, "is_op_built_in", "count")),
        "recexch": AlgorithmFacts(_EXCHANGE, (_SUM,)),
        "ring": AlgorithmFacts((), (_SUM,)),
        "k_reduce_scatter_allgather": AlgorithmFacts(_EXCHANGE, (_SUM,)),
    },
    Operation.ALL_TO_ALL: {
        name: AlgorithmFacts((), ("is_sendbuf_inplace",)) for name in ("brucks", "pairwise", "scattered")
    },
    Operation.BARRIER: {"k_dissemination": AlgorithmFacts(("k=2",))},
    Operation.BROADCAST: {
        "binomial": AlgorithmFacts(),
        "scatter_recursive_doubling_allgather": AlgorithmFacts(),
        "scatter_ring_allgather": AlgorithmFacts(),
        "tree": AlgorithmFacts(("tree_type=kary", "k=2", "is_non_blocking=1")),
        "pipelined_tree": AlgorithmFacts(
            ("tree_type=kary", "k=2", "is_non_blocking=1", "chunk_size=8192", "recv_pre_posted=0")
        ),
    },
    Operation.REDUCE: {
        "binomial": AlgorithmFacts(),
        "reduce_scatter_gather": AlgorithmFacts((), (_SUM, "is_op_built_in", "count")),
    },
    Operation.REDUCE_SCATTER: {
        "recursive_doubling": AlgorithmFacts((), (_SUM,)),
        "pairwise": AlgorithmFacts((), (_SUM,)),
        "recursive_halving": AlgorithmFacts((), (_SUM,)),
    },
}
_KINDS = "algorithm=MPIR_", "composition=MPIDI_"  # texts that only the MPI library's own two selection trees contain
# Each condition as a pair: the condition for calls that the algorithm supports, and that for all other calls.
_CONDITIONS = {
    _SUM: ("is_commutative=yes", "is_commutative=no"),
    "is_op_built_in": ("is_op_built_in=yes", "is_op_built_in=no"),
    "is_sendbuf_inplace": ("is_sendbuf_inplace=no", "is_sendbuf_inplace=yes"),
}


@dataclass(frozen=True, slots=True)
class DecisionTrees:
    """MPICH's two decision trees: `algorithms` selects a collective's algorithm, `compositions` its composition.

    A composition (of device ch4) states how a collective is divided into parts within nodes and between nodes.
    """

    algorithms: DecisionTree
    compositions: DecisionTree


def get_collective_name(operation: Operation) -> str:
    """Return the name of an operation's collective in MPICH's variables and files, such as `Allreduce`."""
    return _NAMES[operation]


def read_default_trees(library: Path) -> DecisionTrees:
    """Return the built-in decision trees in the file of an MPICH library; raise UnavailableError if it has none."""
    all_trees: list[DecisionTree] = [
        json.loads(text) for text in re.findall(rb'\{"collective=[^\0]*', library.read_bytes())
    ]
    both = [[tree for tree in all_trees if kind in json.dumps(tree)] for kind in _KINDS]
    if not all(both):
        raise UnavailableError(
            f"{library} does not contain MPICH's decisions of algorithms as JSON, as MPICH 5.0 does; "
            "use a release of MPICH from 5.0 on"
        )
    return DecisionTrees(*(max(trees, key=len) for trees in both))


def add_rules(defaults: DecisionTrees, rules: LibraryRules) -> DecisionTrees:
    """Return MPICH's decision trees with the rules added, for communicators like the measured one.

    The rules apply to communicators with the measured number of ranks that, like the measured one, are on one node or
    on several nodes.
    """
    return DecisionTrees(_add_to(defaults.algorithms, rules, 0), _add_to(defaults.compositions, rules, 1))


def _add_to(defaults: DecisionTree, rules: LibraryRules, level: int) -> DecisionTree:
    """Return a decision tree with the rules added; `level` is 0 for the tree of algorithms, 1 for compositions."""
    tree = dict(defaults)
    for operation in rules.operations:
        key = f"collective={_NAMES[operation].lower()}"
        intra = tree[key]["comm_type=intra"]
        sized = _limit_sizes(rules, operation, intra, level)
        tree[key] = tree[key] | {"comm_type=intra": _limit_ranks(rules, intra, sized, level)}
    return tree


def _limit_ranks(rules: LibraryRules, default: DecisionTree, special: DecisionTree, level: int) -> DecisionTree:
    """Return a decision tree that is `special` for communicators like the measured one, else `default`.

    Args:
        default: MPICH's own tree.
        special: the tree with rules.
    """
    one = "comm_size=node_comm_size"
    placed = {one: special, "comm_size=any": default} if rules.nodes == 1 else {one: default, "comm_size=any": special}
    if level == 1:
        placed = {"comm_hierarchy=parent": placed, "comm_hierarchy=any": default}
    return {f"comm_size<={rules.ranks - 1}": default, f"comm_size<={rules.ranks}": placed, "comm_size=any": default}


def _limit_sizes(rules: LibraryRules, operation: Operation, default: DecisionTree, level: int) -> DecisionTree:
    """Return an operation's decision tree by message size, from its rules and, for other sizes, from MPICH's `default`.

    `level` is 0 for the tree of algorithms, 1 for compositions.
    """
    if operation is Operation.BARRIER:
        return _make_choice(operation, rules.list_rules(operation)[0].algorithm, default, level)
    size = "total_msg_size" if operation in _TOTAL else "avg_msg_size"
    segments = list(rules.list_segments(operation))
    ends: list[int | None] = [first - 1 for first, _ in segments[1:]]
    tree: DecisionTree = {}
    for (_, rule), end in zip(segments, [*ends, None], strict=True):
        key = f"{size}=any" if end is None or end > LARGEST else f"{size}<={end}"
        tree[key] = _make_choice(operation, rule.algorithm, default, level) if rule else default
    return tree


def _make_choice(operation: Operation, algorithm: LibraryAlgorithm, default: DecisionTree, level: int) -> DecisionTree:
    """Return the decision tree that selects `algorithm` (`level` 0) or its composition (`level` 1) for an operation.

    Calls that the algorithm does not support use MPICH's own tree, `default`.
    """
    name, facts = _NAMES[operation], ALGORITHMS[operation].get(algorithm.name, AlgorithmFacts((), ()))
    if level == 1 and algorithm.composition:
        chosen: DecisionTree = {f"composition=MPIDI_{name}_intra_composition_{algorithm.composition}": {}}
    elif level == 0 and algorithm.name:
        chosen = {f"algorithm=MPIR_{name}_intra_{algorithm.name}": {parameter: {} for parameter in facts.parameters}}
    else:
        return default
    conditions = facts.conditions
    if not algorithm.name and operation in (Operation.ALL_REDUCE, Operation.REDUCE):
        conditions = (_SUM,)  # reducing within nodes first changes the order of reduction
    for condition in reversed(conditions):
        if condition == "count":  # each rank of the largest power of two needs an element
            chosen = {"count<pow2": default, "count=any": chosen}
        else:
            supported, others = _CONDITIONS[condition]
            chosen = {supported: chosen, others: default}
    return chosen


def name_compositions_file(path: Path) -> Path:
    """Return the path of the file of compositions, FILE.ch4.json, that belongs to the file of algorithms `path`."""
    return path.with_suffix(f".ch4{path.suffix}")


def list_variables(path: Path) -> dict[str, str]:
    """Return the environment variables by which MPICH reads the file of algorithms `path` and that of compositions."""
    return {
        "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": str(path.absolute()),
        "MPIR_CVAR_CH4_COLL_SELECTION_TUNING_JSON_FILE": str(name_compositions_file(path).absolute()),
    }


def format_tree(tree: DecisionTree) -> str:
    """Return a decision tree as JSON text, whose size is never a multiple of PAGE, because MPICH requires this."""
    text = json.dumps(tree, indent=1) + "\n"
    return text if len(text) % PAGE else text + "\n"
