"""What `auto` takes, and in how many chunks a message is pipelined.

First of all what was measured here (table.py, `hpccoll tune`), the MPI library's own collective among the candidates.
Without it a rule of thumb, from measurements on one host; and where that says nothing, the cost model over the stated
costs.

The model: an algorithm of `steps` steps in which the busiest rank sends m S takes about steps * alpha + max(m S,
steps * S / C) * beta: every step costs a latency, a rank cannot send faster than its link, nor end a step before its
chunk of C has crossed. Where k chunks follow each other, each step carries m S / k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hpccoll.algorithms.registry import Algorithm, get_algorithm, list_algorithm_names
from hpccoll.plan.operation import Operation
from hpccoll.selection.table import LIBRARY, BufferKind, Table, Verdict
from hpccoll.units import KiB, MiB, format_size

__all__ = [
    "LIBRARY",
    "BufferKind",
    "Choice",
    "Chooser",
    "Link",
    "Question",
    "Table",
    "best_algorithm",
    "best_chunks",
    "predicted_s",
]

MOST_CHUNKS = 16  # more cost more in waiting than they hide, with as many ranks as cores (measured)
LEAST_CHUNK_BYTES = 128 * KiB
LEADING_BITS = 3  # of a size; what follows them changes no decision

# What auto takes into account while no measured table says more: plans whose messages are single pieces of memory and
# that were held against the others on one host.
UNTUNED = {
    Operation.ALL_REDUCE: ("rabenseifner", "recursive_doubling", "ring", "tree"),
    Operation.REDUCE_SCATTER: ("bruck", "ring"),
    Operation.ALL_GATHER: ("bruck", "ring"),
    Operation.BROADCAST: ("chain", "tree"),
    Operation.REDUCE: ("chain", "tree"),
    Operation.GATHER: ("tree",),
    Operation.SCATTER: ("tree",),
    Operation.ALL_TO_ALL: ("pairwise",),
    Operation.BARRIER: ("dissemination",),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """For messages below so many bytes, the first of these names that may be taken; none leaves it to the model."""

    below: float
    names: tuple[str, ...]


ANY = float("inf")
# Ranks of one node, until it is tuned: from two ranks on two cores with MPICH 5.0.2, each message written anew before
# it is reduced. In us, library / best plan of messages / shared_two_shot on host, on symmetric buffers: 4 KiB 13 / 12 /
# 16, 9; 32 KiB 31 / 18 / 10, 10; 256 KiB 57 / 47 / 49, 20; 2 MiB 508 / 349 / 423, 138. Beyond, and on more ranks, they
# are guesses.
RULES: dict[tuple[Operation, BufferKind], tuple[Rule, ...]] = {
    (Operation.ALL_REDUCE, BufferKind.HOST): (
        Rule(8 * KiB, (LIBRARY, "shared_one_shot")),
        Rule(128 * KiB, ("shared_two_shot", LIBRARY)),
        Rule(8 * MiB, ("rabenseifner",)),
        Rule(ANY, ("shared_two_shot",)),
    ),
    (Operation.ALL_REDUCE, BufferKind.SYMMETRIC): (
        Rule(8 * KiB, (LIBRARY, "shared_one_shot")),
        Rule(ANY, ("shared_two_shot",)),
    ),
    (Operation.BARRIER, BufferKind.HOST): (Rule(ANY, (LIBRARY, "shared")),),
    **{
        (operation, buffer): (Rule(16 * KiB, (LIBRARY,)), Rule(ANY, above))
        for operation in Operation
        if operation not in (Operation.ALL_REDUCE, Operation.BARRIER)
        for buffer, above in ((BufferKind.HOST, ()), (BufferKind.SYMMETRIC, ("shared",)))
    },
}

# Ranks of several nodes, until they are tuned: short messages are the library's, which has the fewest calls; then the
# fewest rounds between nodes, and for long messages the fewest bytes.
ACROSS_NODES: dict[Operation, tuple[Rule, ...]] = {
    Operation.ALL_REDUCE: (
        Rule(32 * KiB, (LIBRARY, "hierarchical_doubling")),
        Rule(512 * KiB, ("hierarchical_doubling",)),
        Rule(ANY, ("hierarchical_ring",)),
    ),
    **{
        operation: (
            Rule(32 * KiB, (LIBRARY, "hierarchical_bruck")),
            Rule(512 * KiB, ("hierarchical_bruck",)),
            Rule(ANY, ("hierarchical_ring",)),
        )
        for operation in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
    },
    **{
        operation: (
            Rule(32 * KiB, (LIBRARY, "hierarchical_tree")),
            Rule(256 * KiB, ("hierarchical_tree",)),
            Rule(ANY, ("hierarchical_chain",)),
        )
        for operation in (Operation.BROADCAST, Operation.REDUCE)
    },
    **{
        operation: (Rule(256 * KiB, (LIBRARY,)), Rule(ANY, ("hierarchical_direct",)))
        for operation in (Operation.GATHER, Operation.SCATTER)
    },
    Operation.ALL_TO_ALL: (Rule(8 * KiB, (LIBRARY,)), Rule(ANY, ("hierarchical_pairwise",))),
    Operation.BARRIER: (Rule(ANY, (LIBRARY, "hierarchical_dissemination")),),
}


@dataclass(frozen=True, slots=True)
class Link:
    """What a step and a byte cost; the defaults are of ranks on one host, driven from Python."""

    alpha_s: float = 8e-6
    beta_s_per_byte: float = 1 / 4e9


def predicted_s(algorithm: Algorithm, n: int, chunks: int, nbytes: int, link: Link) -> float:
    """Return the seconds that the model gives for a message of `nbytes` (nccl-tests' S)."""
    cost = algorithm.plan(n, 0, chunks).cost
    if cost is None:
        return float("inf")
    steps, most = cost.steps, float(cost.most)
    moved = most * steps / chunks if "chunks" in algorithm.parameters else max(most, steps / _pieces(algorithm, n))
    return steps * link.alpha_s + moved * nbytes * link.beta_s_per_byte


def _pieces(algorithm: Algorithm, n: int) -> int:
    return max(algorithm.plan(n).make(np.zeros(1, np.int64)).chunks, 1)


@lru_cache(maxsize=4096)
def best_chunks(algorithm: Algorithm, n: int, nbytes: int, link: Link = Link()) -> int:
    """Return the chunk count, a power of two, that the model favours; 1 where the algorithm does not pipeline."""
    if "chunks" not in algorithm.parameters:
        return 1
    most = min(MOST_CHUNKS, max(nbytes // LEAST_CHUNK_BYTES, 1))
    candidates = [1 << k for k in range(most.bit_length())]
    return min(candidates, key=lambda chunks: predicted_s(algorithm, n, chunks, nbytes, link))


@lru_cache(maxsize=4096)
def best_algorithm(operation: Operation, n: int, nbytes: int, link: Link = Link()) -> Algorithm:
    """Return the algorithm that the model favours for `nbytes` on n ranks.

    Of those that it cannot tell apart, the one that cuts the message finest: it also has the least to reduce.
    """
    known = [get_algorithm(operation, name) for name in UNTUNED[operation]]

    def rank(each: Algorithm) -> tuple[float, int]:
        seconds = predicted_s(each, n, best_chunks(each, n, nbytes, link), nbytes, link)
        return float(f"{seconds:.2g}"), -_pieces(each, n)

    return min(known, key=rank)


class Question(NamedTuple):
    """A collective for which something must be chosen; every rank asks the same.

    A tuple, since one is made in half the time of a dataclass.

    Args:
        operation: which collective.
        nbytes: nccl-tests' S.
        itemsize: bytes of an element.
        buffer: where the buffers live.
        library: whether the MPI library's own may be taken: dtype and reduction mean the same there.
        shared: whether algorithms in shared memory may be taken: the ranks of a node have memory in common.
    """

    operation: Operation
    nbytes: int
    itemsize: int
    buffer: BufferKind
    library: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What carries it out: an algorithm, or None for the MPI library's own; in how many chunks; and why that."""

    algorithm: Algorithm | None
    chunks: int
    why: str

    @property
    def name(self) -> str:
        """The algorithm's name, or `mpi`."""
        return self.algorithm.name if self.algorithm else LIBRARY


class Chooser:
    """Decides for one communicator: by what was measured, else by a rule of thumb, else by the cost model.

    Args:
        ranks: how many there are.
        nodes: on how many nodes.
        table: what was measured; alike on all ranks, or they would choose differently.

    Cost: 0.5 us for a question of a class that was asked before. A class holds the sizes whose three leading bits are
    the same; what is decided for the smallest of them holds for all.
    """

    def __init__(self, ranks: int, nodes: int, table: Table | None = None) -> None:
        self._ranks, self._nodes, self._table = ranks, nodes, table
        self._known: dict[tuple[Operation, int, int, BufferKind, bool, bool], Choice] = {}

    def choose(self, question: Question) -> Choice:
        """Return what carries out the collective that `question` describes."""
        operation, nbytes, itemsize, buffer, library, shared = question
        drop = nbytes.bit_length() - LEADING_BITS
        if drop > 0:
            nbytes = nbytes >> drop << drop
        key = (operation, nbytes, itemsize, buffer, library, shared)
        choice = self._known.get(key)
        if choice is None:
            choice = self._known[key] = self._decide(question, nbytes)
        return choice

    def _decide(self, question: Question, nbytes: int) -> Choice:
        allowed = self._allowed(question)
        if self._table is not None:
            verdict = self._table.best(question.operation, question.itemsize, question.buffer, nbytes, allowed)
            if verdict is not None:
                return self._choice(question, verdict.winner.name, nbytes, _measured(verdict, nbytes))
        for name in self._by_rule(question, nbytes):
            if name in allowed:
                return self._choice(question, name, nbytes, "rule of thumb")
        name = best_algorithm(question.operation, self._ranks, nbytes).name
        return self._choice(question, name, nbytes, "cost model")

    def _allowed(self, question: Question) -> set[str]:
        known = [get_algorithm(question.operation, name) for name in list_algorithm_names(question.operation)]
        within = {each.name for each in known if not each.uses_shared_memory}
        if question.shared:
            within |= {each.name for each in known if each.uses_shared_memory and (each.is_hybrid or self._nodes == 1)}
        return within | {LIBRARY} if question.library else within

    def _by_rule(self, question: Question, nbytes: int) -> Sequence[str]:
        if self._ranks == 1:
            return ()
        if self._nodes > 1:
            rules = ACROSS_NODES[question.operation]
            return (*next((rule.names for rule in rules if nbytes < rule.below), ()), LIBRARY)
        rules = RULES.get((question.operation, question.buffer), ())
        return next((rule.names for rule in rules if nbytes < rule.below), ())

    def _choice(self, question: Question, name: str, nbytes: int, why: str) -> Choice:
        if name == LIBRARY:
            return Choice(None, 1, why)
        algorithm = get_algorithm(question.operation, name)
        return Choice(algorithm, best_chunks(algorithm, self._ranks, nbytes), why)


def _measured(verdict: Verdict, nbytes: int) -> str:
    """Say what the table said, such as `measured 2026-03-01 (412 us; next ring 880 us)`."""
    winner, second, point = verdict.winner, verdict.second, verdict.point
    at = "" if point.nbytes == nbytes else f" at {format_size(point.nbytes)}"
    against = f"; next {second.name} {_us(second.us)}" if second else ""
    return f"measured {point.measured}{at} ({_us(winner.us)}{against})"


def _us(microseconds: float) -> str:
    return f"{microseconds:.3g} us" if microseconds < 100 else f"{microseconds:.0f} us"
