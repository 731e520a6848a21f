"""The symbolic contents of all chunks while a plan is checked: their contributions and the order of reduction.

In array shapes, n is the number of ranks, C the number of chunks per rank, K the number of integers in the weight of a
contribution, and M the number of chunks that a call reads or writes. A place is the number rank * C + chunk, which
stands for one chunk of one rank.

Each contribution (an input chunk of a rank) has a random 128-bit weight; the weight of a chunk is the sum of the
weights of its contributions. Two different multisets of at most 2**14 contributions have equal weights with probability
below 2**-100, so a repeated, missing or misplaced contribution is found. Because weights are added modulo 2**64, 2**64
repetitions of a contribution would add nothing, so contributions are also counted in floating point, which does not
wrap around. The order of a reduction is represented by a hash that is not commutative. Two chunks with equal hashes
were reduced in the same order, unless two 64-bit hashes collide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.operation import Mask, Operation, Weights
from hpccoll.plan.step import IntArray, Ints, Op
from hpccoll.units import format_list

Hashes: TypeAlias = NDArray[np.uint64]
Contents: TypeAlias = NDArray[np.uint64]  # rows of `SymbolicState.contents`
_MOST_RECOUNTED = 2**22  # most weights of a recount (32 MiB); errors of larger plans name no contributions
_LEFT, _RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)
_COPY, _OWN_FIRST = int(Op.COPY), int(Op.OWN_FIRST)  # plain integers: reading an enum member costs a microsecond


def _hash_pair(left: Hashes, right: Hashes) -> Hashes:
    """Return the hashes of the reductions left (+) right of two arrays of hashes; the order of operands matters."""
    mixed = (left * _LEFT) ^ ((right + _LEFT) * _RIGHT)
    spread: Hashes = mixed ^ (mixed >> _SHIFT)
    return spread


def random_weights(n: int, chunks: int) -> Weights:
    """Return random weights for a proof, two 64-bit integers per contribution, shape (n, chunks, 2).

    A sum of weights identifies its contributions, except with negligible probability.
    """
    numbers = _draw_numbers((n * chunks * 2).bit_length())
    return np.reshape(numbers[: n * chunks * 2], (n, chunks, 2))


@lru_cache(maxsize=2)
def _draw_numbers(bits: int) -> Weights:
    """Return an array of 2**bits random numbers, the same numbers in every call."""
    numbers: Weights = np.random.default_rng(1).integers(1, 2**64, 2**bits, dtype=np.uint64)
    return numbers


def one_hot_weights(n: int, chunks: int) -> Weights:
    """Return weights of shape (n, chunks, n) whose sums count the contributions of each rank to a chunk.

    The weight of rank r is the vector with a one at entry r.
    """
    return np.broadcast_to(np.eye(n, dtype=np.uint64)[:, None, :], (n, chunks, n))


class SymbolicState:
    """The symbolic contents of all chunks of all n ranks between two rounds of a proof.

    `contents` has one row per chunk of a rank: the sum of the K weights of its contributions, the number of
    contributions (the bits of a float64), and the hash of the reduction order. Chunks that were never written have zero
    contributions. `is_input`, shape (n, chunks), marks the input chunks, and `input_weights`, shape (n, chunks, K), has
    the weights of the contributions. `heard`, shape (n, n), marks the ranks that each rank has heard from in a barrier;
    in other operations it is None.
    """

    def __init__(self, operation: Operation, n: int, chunks: int, root: int, weights: Weights) -> None:
        self.operation, self.n, self.chunks, self.root = operation, n, chunks, root
        self.is_input = is_input = operation.input_mask(np.arange(n), n, chunks, root)
        self.input_weights = np.where(is_input[..., None], weights, np.uint64(0))
        self.contents = np.empty((n * chunks, weights.shape[2] + 2), np.uint64)
        self.contents[:, :-2] = self.input_weights.reshape(n * chunks, weights.shape[2])
        count_contributions(self.contents)[:] = is_input.reshape(-1)
        self.contents[:, -1] = np.arange(1, n * chunks + 1, dtype=np.uint64) * _RIGHT * is_input.reshape(-1)
        self.heard = np.eye(n, dtype=np.bool_) if operation is Operation.BARRIER else None

    @property
    def weights(self) -> Weights:
        """The sum of the weights of the contributions in each chunk of each rank, shape (n, chunks, K)."""
        return self.contents[:, :-2].reshape(self.input_weights.shape)

    @property
    def counts(self) -> NDArray[np.float64]:
        """The number of contributions in each chunk of each rank, shape (n, chunks)."""
        return count_contributions(self.contents).reshape(self.n, self.chunks)

    @property
    def order(self) -> Hashes:
        """The hash of the reduction order of each chunk of each rank, shape (n, chunks)."""
        return self.contents[:, -1].reshape(self.n, self.chunks)

    @property
    def valid(self) -> Mask:
        """A mask, shape (n, chunks), of the chunks that are input or have been written."""
        return self.counts > 0

    def receive(self, op: Ints, place: IntArray, incoming: Contents) -> NDArray[np.float64]:
        """Copy or reduce row i of `incoming` into row place[i] of `contents`, for all i.

        Args:
            op: the operation (copy or reduce) of all rows, or an array with the operation of each row.
            place: the rows to change, without repetition: rank * chunks + chunk.
            incoming: rows in the form of `contents`.

        Returns:
            For each row of `incoming`, the number of contributions in its row of `contents` before the reduction, or 1
                for a copy; an empty array if `op` is the single value COPY for all rows.
        """
        if not isinstance(op, np.ndarray) and op == _COPY:
            self.contents[place] = incoming
            return np.ones(0)
        own = self.contents[place]
        reduced, before = own + incoming, count_contributions(own)
        np.add(before, count_contributions(incoming), out=count_contributions(reduced))
        left, right = own[:, -1], incoming[:, -1]
        if isinstance(op, np.ndarray):
            reduced[:, -1] = np.where(op == _OWN_FIRST, _hash_pair(left, right), _hash_pair(right, left))
            reduced = np.where((op == _COPY)[:, None], incoming, reduced)
            before = np.where(op == _COPY, 1, before)
        else:
            reduced[:, -1] = _hash_pair(left, right) if op == _OWN_FIRST else _hash_pair(right, left)
        self.contents[place] = reduced
        return before


def count_contributions(contents: Contents) -> NDArray[np.float64]:
    """Return the number of contributions in each row of `SymbolicState.contents`, as a view."""
    return contents.view(np.float64)[:, -2]


def check_postcondition(state: SymbolicState, name: str, run_again: Callable[[Weights], SymbolicState]) -> None:
    """Raise PlanError unless the final state is a result that the collective allows.

    Each output chunk must have each required contribution exactly once, in a barrier every rank must have heard from
    every other, and all ranks whose output includes a chunk must have reduced it in the same order.

    Args:
        state: the state at the end of the plan or program.
        name: the name of the plan or program in error messages.
        run_again: executes the plan or program with other weights, to find missing or repeated contributions.
    """
    if state.heard is not None and not state.heard.all():
        early, late = np.nonzero(~state.heard)
        raise PlanError(f"{name}: rank {early[0]} may leave before rank {late[0]} arrived")
    rank, chunk = np.nonzero(_output_mask(state) & ~_find_correct(state))
    if len(rank):
        fault = _describe_fault(state, int(rank[0]), int(chunk[0]), run_again)
        raise PlanError(f"{name}: in the end rank {rank[0]} chunk {chunk[0]} is wrong: {fault}")
    if state.operation.reduces and not state.operation.is_scan:  # in a scan, each rank's output differs
        _check_order(state, name)


def _output_mask(state: SymbolicState) -> Mask:
    """Return a mask of the chunks that form the output of each rank, shape (n, chunks)."""
    return state.operation.output_mask(np.arange(state.n), state.n, state.chunks, state.root)


def _find_correct(state: SymbolicState) -> Mask:
    """Return a mask, shape (n, chunks), of the chunks in `state` that have the expected contributions, each once."""
    is_input = state.is_input[..., None].astype(np.uint64)
    correct: Mask = state.counts == state.operation.expected_weights(is_input, state.n)[..., 0]
    expected, actual = state.operation.expected_weights(state.input_weights, state.n), state.weights
    for k in range(expected.shape[-1]):  # one by one, because reductions along a short axis are slow
        correct &= actual[..., k] == expected[..., k]
    return correct


def _check_order(state: SymbolicState, name: str) -> None:
    """Raise PlanError if two ranks reduced an output chunk in different orders."""
    is_output = _output_mask(state)
    first = np.argmax(is_output, axis=0)
    same = state.order == state.order[first, np.arange(state.chunks)]
    rank, chunk = np.nonzero(is_output & ~same)
    if len(rank):
        pair = f"ranks {first[chunk[0]]} and {rank[0]} reduce chunk {chunk[0]} in different orders"
        raise PlanError(f"{name}: {pair}, so their last bits may differ")


def _describe_fault(state: SymbolicState, rank: int, chunk: int, run_again: Callable[[Weights], SymbolicState]) -> str:
    """Return text that names the contributions that a wrong chunk lacks or has more than once.

    `run_again` executes the plan with weights that count the contributions of each rank.
    """
    n = state.n
    if not state.valid[rank, chunk]:
        return "it was never written"
    if n * n * state.chunks > _MOST_RECOUNTED:
        return "its contributions are not those required (check fewer ranks to see which)"
    recount = run_again(one_hot_weights(n, state.chunks))
    actual = recount.weights[rank, chunk, :]
    expected = recount.operation.expected_weights(recount.input_weights, n)[rank, chunk, :]
    missing, repeated = _list_contributions(actual < expected), _list_contributions(actual > expected)
    faults = [f"{missing} missing"] if missing else []
    faults += [f"{repeated} doubled or misplaced"] if repeated else []
    return "; ".join(faults) or "it holds another chunk's contributions"


def _list_contributions(ranks: Mask) -> str:
    """Return text such as "the contributions of ranks 0, 2 are" for a mask of ranks; "" for an empty mask."""
    listed: IntArray = np.nonzero(ranks)[0]
    if len(listed) < 2:
        return f"the contribution of rank {listed[0]} is" if len(listed) else ""
    return f"the contributions of ranks {format_list(listed.tolist())} are"
