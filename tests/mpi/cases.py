"""One case of a collective: its arguments, its inputs, and the expected results of all ranks.

With n ranks, an operation on blocks moves n blocks of `count` elements, and the others one vector of `count` elements.

The expected result is that of `replay` of the plan that the runtime lowers, with the same scaling before and the same
division after the plan. `tests/expected_result.py` computes the correct result independently of all plans.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll import Reduction
from hpccoll.algorithms import Algorithm, list_algorithms, make_algorithm
from hpccoll.arrays import DTYPES, DType, get_dtype
from hpccoll.measure.data import ExpectedResult, get_reduction_function, make_input
from hpccoll.plan import Nodes, Operation, replay
from tests.expected_result import compute_expected_result

Array = NDArray[Any]
CHUNKS = (1, 2, 3, 7, 16)
VECTORS = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST, Operation.SCAN, Operation.EXSCAN)
BRING_BLOCKS = (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL)
TAKE_BLOCKS = (Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)
PATHS = ("first", "bound", "async", "prepared")


def variants() -> dict[str, Algorithm]:
    """Return every registered algorithm; pipelined ones with several chunk counts."""
    found = {known.full_name: known for known in list_algorithms()}
    for known in list_algorithms():
        if "chunks" in known.parameters:
            found |= {f"{known.full_name}-{chunks}": with_chunks(known, chunks) for chunks in CHUNKS}
    return found


def with_chunks(algorithm: Algorithm, chunks: int) -> Algorithm:
    """Return the algorithm with its number of chunks settled, so that some may be empty."""
    make = algorithm.make_rounds

    def rooted(rank: Any, n: int, root: int) -> Any:
        return make(rank, n, root=root, chunks=chunks)

    def rootless(rank: Any, n: int) -> Any:
        return make(rank, n, chunks=chunks)

    takes_root = "root" in inspect.signature(make).parameters
    return make_algorithm(algorithm.operation, algorithm.name, rooted if takes_root else rootless, None)


def legal(operation: Operation, dtype: str, op: str) -> bool:
    """Whether this reduction of this dtype is defined; operations without a reduction have `none`."""
    if not operation.reduces:
        return op == "none" and (operation is not Operation.BARRIER or dtype == "uint8")
    if operation.is_scan and op == "avg":
        return False
    kind = get_dtype(dtype).kind
    allowed = {
        "b": ("min", "max", "band", "bor", "bxor"),
        "i": ("sum", "prod", "min", "max", "band", "bor", "bxor", "premul", "premul_array"),
        "f": ("sum", "prod", "min", "max", "avg", "premul", "premul_array"),
        "c": ("sum", "prod", "avg", "premul", "premul_array"),
    }
    return op in allowed[kind]


OPS = ("sum", "prod", "min", "max", "band", "bor", "bxor", "avg", "premul", "premul_array")
NAMES = tuple(DTYPES)


@dataclass(frozen=True, slots=True)
class Case:
    """One collective; `special` mixes infinities, NaN, signed zeros and extremes into the inputs."""

    algorithm: Algorithm
    dtype: str
    op: str
    count: int
    root: int = 0
    in_place: bool = False
    path: str = "first"
    special: bool = False
    seed: int = 0
    counts: tuple[int, ...] | None = None  # elements of each block, if blocks differ; n * n in an all_to_all

    @property
    def operation(self) -> Operation:
        """The collective operation."""
        return self.algorithm.operation

    @property
    def kind(self) -> DType:
        """The element type."""
        return get_dtype(self.dtype)

    @property
    def base_op(self) -> str:
        """The reduction without its scaling."""
        return "sum" if self.op in ("none", "avg", "premul", "premul_array") else self.op

    def sent(self, n: int, rank: int) -> tuple[int, ...]:
        """Elements of the blocks that make up a rank's input, or of every rank's block."""
        counts = self.counts or ()
        return counts[rank * n : (rank + 1) * n] if self.operation is Operation.ALL_TO_ALL else counts

    def received(self, n: int, rank: int) -> tuple[int, ...]:
        """Elements of the blocks that make up a rank's output, or of every rank's block."""
        return (self.counts or ())[rank::n] if self.operation is Operation.ALL_TO_ALL else self.counts or ()

    def length(self, n: int, rank: int) -> int:
        """The number of elements of a rank's input."""
        if self.counts is None:
            return self.count * (n if self.operation in BRING_BLOCKS else 1)
        return sum(self.sent(n, rank)) if self.operation in BRING_BLOCKS else self.counts[rank]

    def taken(self, n: int, rank: int) -> int:
        """Elements that a rank gets."""
        if self.counts is None:
            return self.count * (n if self.operation in TAKE_BLOCKS else 1)
        return sum(self.received(n, rank)) if self.operation in TAKE_BLOCKS else self.counts[rank]

    def block(self, rank: int) -> slice:
        """Where a rank's block lies among the blocks of all ranks."""
        sizes = [self.count] * (rank + 1) if self.counts is None else self.counts
        return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    def brings(self, rank: int) -> bool:
        """Whether the rank has an input."""
        if self.operation in (Operation.BROADCAST, Operation.SCATTER):
            return rank == self.root
        return self.operation is not Operation.BARRIER

    def wants(self, rank: int) -> bool:
        """Whether the rank has an output."""
        if self.operation in (Operation.REDUCE, Operation.GATHER):
            return rank == self.root
        if self.operation is Operation.EXSCAN:
            return rank > 0
        return self.operation is not Operation.BARRIER

    def brought(self, rank: int, n: int) -> Array | None:
        """Return the input of a rank, which every rank can compute."""
        if not self.brings(rank):
            return None
        values = make_input(self.kind, self.seed, rank, self.length(n, rank), self.base_op)
        return sprinkled(values, self.seed + 1000 * rank) if self.special else values

    def factor(self, rank: int, n: int) -> Any:
        """The factor of premul_sum: another one on every rank."""
        if self.op == "premul":
            return 3 + rank if self.kind.kind == "i" else 0.75 + rank / 4
        return make_input(self.kind, self.seed + 77, rank, self.length(n, rank)) if self.op == "premul_array" else None

    def reduction(self, rank: int, n: int, shape: tuple[int, ...]) -> str | Reduction:
        """The argument `op` of the call."""
        if not self.op.startswith("premul"):
            return self.op
        factor = self.factor(rank, n)
        return Reduction("premul_sum", factor.reshape(shape) if self.op == "premul_array" else factor)

    def scaled(self, rank: int, n: int) -> Array | None:
        """Return a rank's input as it enters the sum, multiplied by the rank's factor."""
        values, factor = self.brought(rank, n), self.factor(rank, n)
        if values is None or factor is None:
            return values
        return np.asarray(np.multiply(values, np.asarray(factor, values.dtype)))

    def replayed(self, n: int, chunks: int, nodes: Nodes = None) -> list[Array]:
        """Return every rank's expected result, bit for bit: replay of the plan with `chunks` chunks on these nodes."""
        plan = self.algorithm.plan(n, self.root, chunks, nodes)
        function = get_reduction_function(self.base_op) if self.operation.reduces else None
        with np.errstate(all="ignore"):
            count = self.count if self.counts is None else self.counts
            results = replay(plan, count, [self.scaled(rank, n) for rank in range(n)], function)
            if self.op == "avg":
                results = [np.divide(values, values.dtype.type(n)) for values in results]
        return results

    def wrong(self, rank: int, n: int, found: Array) -> int:
        """Return the number of elements that are wrong by arithmetic, independently of any plan; for finite inputs."""
        op = "avg" if self.op == "avg" else self.base_op
        brought = [self.scaled(r, n) for r in range(n)]
        if self.counts is not None:
            wanted = self.expected_of_blocks(brought, op, rank)
        else:
            wanted = compute_expected_result(self.operation, brought, op, rank, self.root)
        return 0 if wanted is None else wanted.count_wrong(found)

    def expected_of_blocks(self, brought: list[Array | None], op: str, rank: int) -> ExpectedResult | None:
        """Return the expected result of a rank by arithmetic, if blocks differ in size."""
        n, given = len(brought), [values for values in brought if values is not None]
        if not self.wants(rank):
            return None
        if self.operation is Operation.REDUCE_SCATTER:
            return compute_expected_result(Operation.ALL_REDUCE, [each[self.block(rank)] for each in given], op, 0, 0)
        if self.operation is Operation.SCATTER:
            return ExpectedResult(given[0][self.block(rank)])
        if self.operation is Operation.ALL_TO_ALL:
            cut = [np.split(values, np.cumsum(self.sent(n, r))[:-1])[rank] for r, values in enumerate(given)]
            return ExpectedResult(np.concatenate(cut))
        return ExpectedResult(np.concatenate(given))


def sprinkled(values: Array, seed: int) -> Array:
    """Put every fifth element or so to something that sums and comparisons trip over."""
    dtype = values.dtype
    if dtype.kind in "iu":
        special = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0], dtype)
    elif dtype.kind == "b":
        return values
    else:
        special = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-40, -1.5]).astype(dtype)
        if dtype.kind == "c":
            special = np.concatenate([special, special])
            special.imag[: len(special) // 2] = special.real[::-1][: len(special) // 2]
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(values)) < 0.4, rng.choice(special, len(values)), values).astype(dtype)


def bits(values: Array) -> bytes:
    """Return the bytes of an array, with one bit pattern for every NaN, as NaN payloads depend on the processor."""
    plain = np.ascontiguousarray(values).reshape(-1)
    if plain.dtype.kind == "c":
        plain = plain.view(plain.real.dtype)
    if plain.dtype.kind in "fV":
        plain = np.where(np.isnan(plain), np.array(np.nan, plain.dtype), plain)
    return plain.tobytes()
