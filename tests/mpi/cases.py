"""One collective with all that it can vary in: its inputs, how it is called, and what every rank must hold after.

Legend: n ranks; a blocked operation moves n blocks of `count` elements, the others one vector of `count` elements.

The oracle is `replay` of the very plan that the runtime lowers, with the same scaling before and the same division
after; `measure.data.expect` says independently of all plans what is right. Memory is guarded: the elements beside each
buffer must stay as they were.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hpccoll import Communicator, Reduction
from hpccoll.collectives import Algorithm, describe, registered
from hpccoll.measure.data import combiner, expect, make_input
from hpccoll.plan.operation import Operation
from hpccoll.plan.replay import replay
from hpccoll.runtime.arrays import adopt
from hpccoll.runtime.dtypes import DTYPES, DType, dtype_named
from hpccoll.runtime.engine import Job

Array = NDArray[Any]
GUARD = 7  # elements, so that buffers are not aligned either
CHUNKS = (1, 2, 3, 7, 16)
VECTORS = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST)
BRING_BLOCKS = (Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL)
TAKE_BLOCKS = (Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)
PATHS = ("first", "bound", "async", "prepared")


def variants() -> dict[str, Algorithm]:
    """Every registered algorithm; those that pipeline at several chunk counts too, whatever the model would choose."""
    found = {known.full_name: known for known in registered()}
    for known in registered():
        if "chunks" in known.takes:
            found |= {f"{known.full_name}-{chunks}": with_chunks(known, chunks) for chunks in CHUNKS}
    return found


def with_chunks(algorithm: Algorithm, chunks: int) -> Algorithm:
    """Return the algorithm with its number of chunks settled, so that some may be empty."""
    make = algorithm.make

    def rooted(rank: Any, n: int, root: int) -> Any:
        return make(rank, n, root=root, chunks=chunks)

    def rootless(rank: Any, n: int) -> Any:
        return make(rank, n, chunks=chunks)

    takes_root = "root" in inspect.signature(make).parameters
    return describe(algorithm.operation, algorithm.name, rooted if takes_root else rootless, None)


def legal(operation: Operation, dtype: str, op: str) -> bool:
    """Whether this reduction of this dtype is defined; `none` is what the operations have that do not reduce."""
    if not operation.reduces:
        return op == "none" and (operation is not Operation.BARRIER or dtype == "uint8")
    kind = dtype_named(dtype).kind
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

    @property
    def operation(self) -> Operation:
        """What is carried out."""
        return self.algorithm.operation

    @property
    def kind(self) -> DType:
        """The element type."""
        return dtype_named(self.dtype)

    @property
    def base_op(self) -> str:
        """The reduction without its scaling."""
        return "sum" if self.op in ("none", "avg", "premul", "premul_array") else self.op

    def length(self, n: int) -> int:
        """Elements that a rank brings."""
        return self.count * (n if self.operation in BRING_BLOCKS else 1)

    def brings(self, rank: int) -> bool:
        """Whether the rank has an input."""
        if self.operation in (Operation.BROADCAST, Operation.SCATTER):
            return rank == self.root
        return self.operation is not Operation.BARRIER

    def wants(self, rank: int) -> bool:
        """Whether the rank has an output."""
        if self.operation in (Operation.REDUCE, Operation.GATHER):
            return rank == self.root
        return self.operation is not Operation.BARRIER

    def brought(self, rank: int, n: int) -> Array | None:
        """What a rank brings; every rank can make every other's."""
        if not self.brings(rank):
            return None
        values = make_input(self.kind, self.seed, rank, self.length(n), self.base_op)
        return sprinkled(values, self.seed + 1000 * rank) if self.special else values

    def factor(self, rank: int, n: int) -> Any:
        """The factor of premul_sum: another one on every rank."""
        if self.op == "premul":
            return 3 + rank if self.kind.kind == "i" else 0.75 + rank / 4
        return make_input(self.kind, self.seed + 77, rank, self.length(n)) if self.op == "premul_array" else None

    def reduction(self, rank: int, n: int, shape: tuple[int, ...]) -> str | Reduction:
        """What to pass as `op`."""
        if not self.op.startswith("premul"):
            return self.op
        factor = self.factor(rank, n)
        return Reduction("premul_sum", factor.reshape(shape) if self.op == "premul_array" else factor)

    def scaled(self, rank: int, n: int) -> Array | None:
        """What a rank's input counts as in the sum."""
        values, factor = self.brought(rank, n), self.factor(rank, n)
        if values is None or factor is None:
            return values
        return np.asarray(np.multiply(values, np.asarray(factor, values.dtype)))

    def replayed(self, n: int, chunks: int) -> list[Array]:
        """What every rank must hold, bit for bit: replay of the plan with `chunks` chunks."""
        plan = self.algorithm.plan(n, self.root, chunks)
        function = combiner(self.base_op) if self.operation.reduces else None
        with np.errstate(all="ignore"):
            results = replay(plan, self.count, [self.scaled(rank, n) for rank in range(n)], function)
            if self.op == "avg":
                results = [np.divide(values, values.dtype.type(n)) for values in results]
        return results

    def wrong(self, rank: int, n: int, found: Array) -> int:
        """Elements that are not right by arithmetic, whatever the plan; for finite inputs."""
        op = "avg" if self.op == "avg" else self.base_op
        wanted = expect(self.operation, [self.scaled(r, n) for r in range(n)], op, rank, self.root)
        return 0 if wanted is None else wanted.wrong(found)


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
    """The bytes of an array, every NaN written alike: payloads are the processor's affair."""
    plain = np.ascontiguousarray(values).reshape(-1)
    if plain.dtype.kind == "c":
        plain = plain.view(plain.real.dtype)
    if plain.dtype.kind in "fV":
        plain = np.where(np.isnan(plain), np.array(np.nan, plain.dtype), plain)
    return plain.tobytes()


class Guarded:
    """Memory with guard elements on both sides."""

    def __init__(self, count: int, dtype: DType) -> None:
        whole = np.empty(count + 2 * GUARD, dtype.numpy)
        self.bytes = whole.view(np.uint8)
        self.bytes[:] = 0xA5
        self.edge = GUARD * dtype.itemsize
        self.flat = whole[GUARD : GUARD + count]

    def intact(self) -> bool:
        """Whether nothing beside the buffer was touched."""
        beside = np.concatenate([self.bytes[: self.edge], self.bytes[len(self.bytes) - self.edge :]])
        return bool((beside == 0xA5).all())


class Call:
    """The buffers of one rank in one case, and the ways to call the collective on them."""

    def __init__(self, comm: Communicator, case: Case) -> None:
        self.comm, self.case, self.n, self.rank = comm, case, comm.size, comm.rank
        self.guards: list[Guarded] = []
        self.x, self.out = self._buffers()
        self.given = case.brought(self.rank, self.n)

    def _memory(self, count: int) -> Array:
        guarded = Guarded(count, self.case.kind)
        self.guards.append(guarded)
        return guarded.flat

    def _buffers(self) -> tuple[Array | None, Array | None]:
        case, n, rank = self.case, self.n, self.rank
        if case.operation is Operation.BARRIER:
            return None, None
        total = case.count * (n if case.operation in TAKE_BLOCKS else 1)
        mine = slice(rank * case.count, (rank + 1) * case.count)
        if case.operation is Operation.BROADCAST:
            return self._memory(total), None
        if not case.in_place or not (case.brings(rank) and case.wants(rank)):
            x = self._memory(case.length(n)) if case.brings(rank) else None
            needs = case.wants(rank) and not (case.operation is Operation.REDUCE and case.in_place)
            return x, self._memory(total) if needs else None
        if case.operation in VECTORS:
            return self._memory(total), None
        if case.operation is Operation.ALL_TO_ALL:
            x = self._memory(total)
            return x, x
        if case.operation in BRING_BLOCKS:
            x = self._memory(case.length(n))
            return x, x[mine]
        out = self._memory(total)
        return out[mine], out

    def load(self) -> None:
        """Put the input in and junk where the output goes."""
        for guarded in self.guards:
            guarded.flat.view(np.uint8)[:] = 0x5A if self.case.kind.kind != "b" else 1
        if self.given is not None and self.x is not None:
            self.x[:] = self.given

    def arguments(self) -> tuple[Any, dict[str, Any]]:
        """What to call the collective with."""
        case = self.case
        how: dict[str, Any] = {"algorithm": case.algorithm}
        if case.operation.rooted:
            how["root"] = case.root
        x = self.x
        if case.operation.reduces:
            shape = () if x is None else x.shape
            how["op"] = case.reduction(self.rank, self.n, shape)
        if self.out is not None:
            how["out"] = self.out
        return x, how

    def function(self) -> Callable[..., Any]:
        """The method of the communicator."""
        method = getattr(self.comm, self.case.operation.value)
        if self.case.operation is Operation.BARRIER:
            return lambda x, **how: method(**how)
        return method  # type: ignore[no-any-return]

    def results(self) -> list[Array | None]:
        """Run the case by its path and return the result of each call."""
        x, how = self.arguments()
        found = []
        if self.case.path == "prepared":
            how.setdefault("op", "sum")
            run = self.comm.prepare(self.case.operation, x, **how)
            for _ in range(2):
                self.load()
                run()
                found.append(self.result())
            run.free()
            return found
        for _ in range(3 if self.case.path == "bound" else 1):
            self.load()
            if self.case.path == "async":
                value = self.function()(x, async_op=True, **how).wait()
            else:
                value = self.function()(x, **how)
            if self.case.wants(self.rank):
                assert value is (x if self.out is None else self.out), "the wrong array was returned"
            found.append(self.result())
        return found

    def result(self) -> Array | None:
        """A copy of what this rank got; checks that nothing else changed."""
        assert all(guarded.intact() for guarded in self.guards), "elements beside a buffer were written"
        reads_only = (self.out is not None and not self.case.in_place) or not self.case.wants(self.rank)
        if reads_only and self.given is not None and self.x is not None:
            assert self.x.tobytes() == self.given.tobytes(), "the input was changed"
        if not self.case.wants(self.rank):
            return None
        held = self.x if self.out is None else self.out
        return None if held is None else held.copy()


def check(comm: Communicator, raw: Any, cases: Sequence[Case]) -> None:
    """Run cases and hold every result against replay, arithmetic and the other ranks.

    The ranks share out the replays, each making those of every n-th case for all ranks.
    """
    n = comm.size
    shares = [oracle(case, comm) for case in cases[comm.rank :: n]]
    mine = raw.alltoall([[share[rank] for share in shares] for rank in range(n)])
    for i, case in enumerate(cases):
        wanted = mine[i % n][i // n]
        for found in Call(comm, case).results():
            if found is not None:
                assert bits(found) == wanted, (case, comm.rank, found, np.frombuffer(wanted, found.dtype))
            if case.operation is Operation.ALL_REDUCE and found is not None:
                assert len(set(raw.allgather(crc32(bits(found))))) == 1, (case, "ranks differ")


def oracle(case: Case, comm: Communicator) -> list[bytes]:
    """Return the bits that every rank must hold; replay itself must be right by arithmetic."""
    # Where the engine chooses how many chunks, the plan to replay is the one that it runs.
    sample = adopt(np.empty(0, case.kind.numpy), "x", writable=False)
    job = Job(case.operation, case.algorithm, case.root, Reduction("sum"), None, sample, case.count)
    results = case.replayed(comm.size, comm._engine.choose(job)[1])
    if not case.special:
        wrong = [case.wrong(rank, comm.size, found) for rank, found in enumerate(results)]
        assert not any(wrong), (case, "replay itself is wrong", wrong)
    return [bits(values) for values in results]
