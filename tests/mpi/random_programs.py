"""Randomly drawn programs of collectives, messages, groups and calls of mpi4py between them.

Results are computed from the known inputs.

All ranks draw the same program from one seed. Each rank draws its own delays, its own order of the asynchronous calls
on different communicators, its own order of waits, and its own kind of array. To run many operations:

    mpirun -n 4 python -m tests.mpi.random_programs --operations 100000 --seed 1
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import get_algorithm, list_algorithm_names
from hpccoll.arrays import get_dtype
from hpccoll.plan import Operation

COUNTS = (0, 1, 2, 3, 7, 16, 61, 128, 1000, 4096, 10_007)
LARGE_COUNTS = (70_001, 300_000)
REDUCTIONS = {
    "float64": ("sum", "prod", "min", "max", "avg"),
    "float32": ("sum", "prod", "min", "max", "avg"),
    "float16": ("sum", "min", "max"),
    "bfloat16": ("sum", "max"),
    "complex64": ("sum", "prod", "avg"),
    "int64": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    "int8": ("sum", "max", "bor"),
    "uint16": ("sum", "min", "bxor"),
    "bool": ("band", "bor", "bxor"),
}
SYMMETRIC_BYTES, SYMMETRIC_BUFFERS = 2**18, 4
MOST_WORKS = 12
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of a program, as all ranks draw it."""

    number: int
    group: int
    operation: Operation
    dtype: str
    count: int
    reduction: str
    root: int
    algorithm: str
    in_place: bool
    blocking: bool
    symmetric: int  # the number of the symmetric buffer, or -1
    counts: tuple[int, ...] = ()  # elements of each block, if blocks differ; of n * n blocks in an all_to_all

    def sent(self, rank: int, n: int) -> tuple[int, ...]:
        """The numbers of elements of the blocks that a rank sends (all_to_all), or of the blocks of all ranks."""
        counts = self.counts or (self.count,) * (n * n)
        return counts[rank * n : (rank + 1) * n] if self.operation is Operation.ALL_TO_ALL else counts[:n]

    def block(self, rank: int, sizes: tuple[int, ...]) -> slice:
        """Return the slice of the block of `rank` in an array of blocks of these sizes."""
        return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


@dataclass(slots=True)
class Pending:
    """An asynchronous operation and the check of its result."""

    work: Any
    check: Callable[[], None]
    symmetric: tuple[int, int] = (-1, -1)


@dataclass(slots=True)
class Group:
    """A communicator, its ranks in the world, and its symmetric buffers."""

    comm: hpccoll.Communicator | None
    ranks: list[int]
    buffers: list[Any] = field(default_factory=list)


@cache
def list_choices(operation: Operation) -> list[str]:
    """Return `auto` several times, `mpi`, and the names of all algorithms of an operation."""
    return ["auto"] * 8 + ["mpi"] * 2 + list(list_algorithm_names(operation))


def draw_call(rng: random.Random, number: int, groups: list[Group]) -> Call:
    """Draw a collective of one of the groups."""
    operation = rng.choice(list(Operation))
    dtype = rng.choice(list(REDUCTIONS))
    reduction = rng.choice(REDUCTIONS[dtype]) if operation.reduces else "sum"
    if operation.is_scan and reduction == "avg":
        reduction = "sum"
    group = rng.randrange(len(groups)) if rng.random() < 0.5 else 0
    count = rng.choice(LARGE_COUNTS) if rng.random() < 0.02 else rng.choice(COUNTS)
    algorithm = rng.choice(list_choices(operation))
    symmetric = rng.randrange(SYMMETRIC_BUFFERS) if rng.random() < 0.25 else -1
    n = len(groups[group].ranks)
    if 3 * n * count * get_dtype(dtype).itemsize > SYMMETRIC_BYTES or operation is Operation.BARRIER:
        symmetric = -1
    blocks = n * n if operation is Operation.ALL_TO_ALL else n
    counts: tuple[int, ...] = ()
    if operation.has_blocks and rng.random() < 0.4:
        counts, symmetric = tuple(rng.choice(COUNTS[:-2]) for _ in range(blocks)), -1
        if operation is Operation.ALL_TO_ALL and algorithm not in ("auto", "mpi"):
            algorithm = "pairwise"
    return Call(
        number, group, operation, dtype, count, reduction, rng.randrange(n), algorithm, rng.random() < 0.5,
        rng.random() < 0.5, symmetric, counts,
    )  # fmt: skip


def make_values(call: Call, rank: int, count: int) -> np.ndarray:
    """Return the input of a rank: small integers, so that every order of reduction gives the same result."""
    largest = 2 if call.reduction == "prod" else 5
    values = (np.arange(count) * 3 + rank * 7 + call.number * 11) % largest + (call.reduction == "prod")
    if call.dtype == "bool":
        values %= 2
    return values.astype(get_dtype(call.dtype).numpy)


def compute_expected(call: Call, rank: int, n: int) -> np.ndarray | None:
    """Return the expected result of a rank; None on a rank without a result."""
    operation = call.operation
    if operation in (Operation.REDUCE, Operation.GATHER) and rank != call.root:
        return None
    values = [make_values(call, each, count_elements(call, each, n)) for each in range(n)]
    mine = call.block(rank, call.sent(rank, n))
    if operation in (Operation.ALL_GATHER, Operation.GATHER):
        return np.concatenate(values)
    if operation is Operation.BROADCAST:
        return values[call.root]
    if operation is Operation.SCATTER:
        return values[call.root][mine]
    if operation is Operation.ALL_TO_ALL:
        return np.concatenate([values[each][call.block(rank, call.sent(each, n))] for each in range(n)])
    values = values[: rank + (operation is Operation.SCAN)] if operation.is_scan else values
    if not values:
        return None
    total = values[0]
    with np.errstate(all="ignore"):
        for each in values[1:]:
            total = FUNCTIONS[call.reduction](total, each).astype(total.dtype)
        if call.reduction == "avg":
            total = (total / total.dtype.type(n)).astype(total.dtype)
    return total[mine] if operation is Operation.REDUCE_SCATTER else total


def count_elements(call: Call, rank: int, n: int) -> int:
    """Return the number of elements of a rank's input."""
    if not call.operation.has_blocks:
        return call.count
    return call.sent(rank, n)[rank] if call.operation in _GATHERS else sum(call.sent(rank, n))


class RandomProgram:
    """Runs one program on this rank; `seed` draws the program, and `seed` with the rank draws this rank's own order."""

    def __init__(self, world: hpccoll.Communicator, seed: int, *, torch: Any = None, groups: int = 3) -> None:
        self.world, self.seed, self.torch = world, seed, torch
        self.rng, self.own = random.Random(seed), random.Random(seed * 1000 + world.rank + 1)
        self.pending: list[Pending] = []
        self.groups = [Group(world, list(range(world.size)))]
        self.number, self.last = 0, ""
        self.kept: dict[tuple[Any, ...], Any] = {}
        for _ in range(groups if world.size > 1 else 0):
            self._add_group()
        for group in self.groups:
            self._make_buffers(group)

    def run(self, operations: int) -> None:
        """Run about `operations` operations and wait for all of them."""
        while self.number < operations:
            draw = self.rng.random()
            if draw < 0.55:
                self._call(draw_call(self.rng, self.number, self.groups))
                self.number += 1
            elif draw < 0.75:
                self._batch()
            elif draw < 0.9 or self.world.size == 1:
                self._message()
            elif draw < 0.97:
                self._do_something_else()
            else:
                self._change_groups()
            self._wait_for_some()
        self._wait_for(self.pending[:])

    def close(self) -> None:
        """Close the groups."""
        for group in self.groups[1:]:
            if group.comm is not None:
                group.comm.close()
        for buffer in self.groups[0].buffers:
            self.world.free(buffer)

    def _add_group(self) -> None:
        ranks = self.rng.sample(range(self.world.size), self.rng.randint(1, self.world.size))
        self.groups.append(Group(self.world.new_group(ranks), ranks))

    def _make_buffers(self, group: Group) -> None:
        if group.comm is not None:
            group.buffers = [group.comm.empty(SYMMETRIC_BYTES, "uint8") for _ in range(SYMMETRIC_BUFFERS)]

    def _change_groups(self) -> None:
        """Close one group while other operations are in flight, and make another."""
        index, frees = self.rng.randrange(1, len(self.groups)), self.rng.random() < 0.5
        group = self.groups.pop(index)
        if group.comm is not None:
            if frees:
                for buffer in group.buffers:
                    group.comm.free(buffer)
            group.comm.close()
        self._wait_for([each for each in self.pending if each.symmetric[0] == id(group)])
        self._add_group()
        self._make_buffers(self.groups[-1])

    def _batch(self) -> None:
        """Start several asynchronous collectives on different groups, in this rank's own order."""
        calls = [draw_call(self.rng, self.number + at, self.groups) for at in range(self.rng.randint(2, 6))]
        self.number += len(calls)
        used: set[tuple[int, int]] = set()
        for at, call in enumerate(calls):
            # A second call on the same buffer would have to wait for the first one, which other ranks may start later.
            key = call.group, call.symmetric
            calls[at] = replace(call, blocking=False, symmetric=-1 if key in used else call.symmetric)
            used.add(key)
        queues = [[call for call in calls if call.group == group] for group in range(len(self.groups))]
        queues = [queue for queue in queues if queue]
        while queues:
            queue = self.own.choice(queues)
            self._call(queue.pop(0))
            queues = [queue for queue in queues if queue]

    def _message(self) -> None:
        """Send a message between two ranks, with blocking or non-blocking calls."""
        number, n = self.number, self.world.size
        self.number += 1
        source, dest = self.rng.randrange(n), self.rng.randrange(n)
        count, tag = self.rng.choice((0, 1, 100, 5000, 300_000)), number % 1000
        blocking = self.rng.random() < 0.4 and source != dest
        expected = (np.arange(count) + number) % 251
        self.last = f"message {number} from {source} to {dest}"
        if self.world.rank == source:
            sent = expected.astype(np.int32)
            if blocking:
                self.world.send(sent, dest, tag)
            else:
                work = self.world.isend(sent, dest, tag)
                self.pending.append(Pending(work if self.own.random() < 0.5 else _Dropped(), lambda: None))
        if self.world.rank == dest:
            received = np.full(count, -1, np.int32)
            check = _compare(received, expected, self.last, self.seed)
            if blocking:
                self.world.recv(received, source, tag)
                check()
            else:
                self.pending.append(Pending(self.world.irecv(received, source, tag), check))

    def _do_something_else(self) -> None:
        """Compute, sleep or call MPI itself while operations are in flight."""
        kind, number = self.rng.choice(("barrier", "allreduce", "exchange", "elsewhere")), self.number
        self.number += 1
        comm, n = MPI.COMM_WORLD, MPI.COMM_WORLD.size
        self.last = f"{kind} {number}"
        if kind == "elsewhere" or n != self.world.size:
            if self.own.random() < 0.5:
                time.sleep(self.own.random() * 5e-3)
            else:
                x = np.ones((self.own.randint(1, 300),) * 2)
                assert (x @ x)[0, 0] == len(x)
        elif kind == "barrier":
            comm.Barrier()
        elif kind == "allreduce":
            assert comm.allreduce(number + comm.rank) == n * number + n * (n - 1) // 2
        else:
            got = comm.sendrecv((number, comm.rank), (comm.rank + 1) % n, source=(comm.rank - 1) % n)
            assert got == (number, (comm.rank - 1) % n)

    def _call(self, call: Call) -> None:
        group = self.groups[call.group]
        if group.comm is None:
            return
        if call.symmetric >= 0:
            key = (id(group), call.symmetric)
            self._wait_for([each for each in self.pending if each.symmetric == key])
        self.last = str(call)
        if self.own.random() < 0.01:
            time.sleep(self.own.random() * 2e-3)
        arguments, result, check = self._prepare(call, group)
        method = getattr(group.comm, call.operation.value)
        if call.blocking:
            got = method(*arguments, **result)
            check(got)
        else:
            work = method(*arguments, **result, async_op=True)
            self.pending.append(Pending(work, lambda: check(work.wait()), (id(group), call.symmetric)))

    def _prepare(self, call: Call, group: Group) -> tuple[list[Any], dict[str, Any], Callable[[Any], None]]:
        """Return the arguments of a call, its keywords, and the check of its result."""
        comm = group.comm
        assert comm is not None
        n, rank, operation = comm.size, comm.rank, call.operation
        how: dict[str, Any] = {"algorithm": self._choose_algorithm(call)}
        if operation.reduces:
            how["op"] = call.reduction
        if operation.has_root:
            how["root"] = call.root
        if operation is Operation.BARRIER:
            return [], how, lambda _: None
        values = make_values(call, rank, count_elements(call, rank, n))
        if call.counts:
            how["counts"] = call.sent(rank, n)
            if operation is Operation.ALL_TO_ALL:
                how["out_counts"] = call.counts[rank::n]
        kind = "symmetric" if call.symmetric >= 0 else self.own.choice(("numpy", "numpy", "torch", "strided"))
        if operation is Operation.BROADCAST:
            if rank != call.root:
                values = np.full_like(values, 1)
            x = self._place(values, kind if kind != "strided" else "numpy", group, call, 0)
            return [x], how, self._checker(call, rank, n, x, None)
        expected = compute_expected(call, rank, n)
        in_place = call.in_place and (operation in (Operation.ALL_REDUCE, Operation.REDUCE) or operation.is_scan)
        if in_place:
            x = self._place(values, kind if kind != "strided" else "numpy", group, call, 0)
            return [x], how, self._checker(call, rank, n, None, None)
        x = None if operation is Operation.SCATTER and rank != call.root else self._place(values, kind, group, call, 0)
        if expected is not None and (kind == "symmetric" or not call.in_place or x is None):
            out = self._place(np.zeros_like(expected), "numpy" if kind == "strided" else kind, group, call, 1)
            how["out"] = out
        unchanged = None if x is None else (x, values)
        return [x], how, self._checker(call, rank, n, None, unchanged)

    def _choose_algorithm(self, call: Call) -> str:
        """Return the algorithm's name, or `auto` where it cannot run this call."""
        if call.algorithm in ("auto", "mpi"):
            exact = call.reduction in ("sum", "prod") and call.dtype in ("float64", "float32", "int64", "complex64")
            return call.algorithm if exact or not call.operation.reduces else "auto"
        algorithm = get_algorithm(call.operation, call.algorithm)
        several_nodes = len(self.world._engine.nodes) > 1
        return "auto" if algorithm.uses_shared_memory and several_nodes else call.algorithm

    def _place(self, values: np.ndarray, kind: str, group: Group, call: Call, half: int) -> Any:
        """Return an array of this kind that holds the values."""
        if kind == "symmetric":
            start = half * (SYMMETRIC_BYTES // 2)
            x = group.buffers[call.symmetric][start : start + values.nbytes].view(values.dtype)
            x[:] = values
            return x
        if kind == "torch" and self.torch is not None:
            x = self._take(call, kind, half, len(values))
            if len(values):
                x.view(self.torch.uint8).numpy()[:] = values.view(np.uint8)
            return x
        if kind == "strided":
            wide = np.zeros((len(values), 3), values.dtype)
            wide[:, 1] = values
            return wide[:, 1]
        x = self._take(call, "numpy", half, len(values))
        x[:] = values
        return x

    def _take(self, call: Call, kind: str, half: int, count: int) -> Any:
        """Return an array for a call: a new one, or the array of an earlier blocking call, as each rank draws it."""
        key = call.group, call.dtype, kind, half, count
        if call.blocking and key in self.kept and self.own.random() < 0.6:
            return self.kept[key]
        if kind == "torch":
            x = self.torch.empty(count, dtype=getattr(self.torch, call.dtype))
        else:
            x = np.empty(count, get_dtype(call.dtype).numpy)
        if call.blocking and self.own.random() < 0.5:
            self.kept[key] = x
        return x

    def _checker(self, call: Call, rank: int, n: int, result: Any, unchanged: Any) -> Callable[[Any], None]:
        """Return a function that checks a result, and that the input is unchanged."""

        def check(got: Any) -> None:
            expected = compute_expected(call, rank, n)
            if expected is not None:
                _compare(got if result is None else result, expected, str(call), self.seed)()
            if unchanged is not None:
                _compare(unchanged[0], unchanged[1], f"input of {call}", self.seed)()

        return check

    def _wait_for_some(self) -> None:
        """Wait for some operations in this rank's own order, and for the oldest ones if many are in flight."""
        if self.pending and self.own.random() < 0.3:
            self._wait_for(self.own.sample(self.pending, self.own.randint(1, min(3, len(self.pending)))))
        if len(self.pending) > MOST_WORKS:
            self._wait_for(self.pending[: -MOST_WORKS // 2])

    def _wait_for(self, some: list[Pending]) -> None:
        for each in some:
            if self.own.random() < 0.2:
                each.work.test()
            each.work.wait()
            each.check()
            self.pending.remove(each)


_GATHERS = (Operation.ALL_GATHER, Operation.GATHER)


class _Dropped:
    """Replaces the handle of a message that the program does not wait for."""

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""


def _compare(got: Any, expected: np.ndarray, what: str, seed: int) -> Callable[[], None]:
    """Return a check that an array equals the expected elements."""

    def check() -> None:
        found = np.asarray(got if isinstance(got, np.ndarray) else _as_numpy(got, expected.dtype)).reshape(-1)
        wanted = expected.astype(found.dtype)
        if len(found) != len(wanted) or not np.array_equal(found, wanted):
            at: Any = np.nonzero(found != wanted)[0][:5] if len(found) == len(wanted) else []
            raise AssertionError(
                f"seed {seed}, {what}: {len(found)} elements, wrong at {list(at)}: {found[at]} for {wanted[at]}"
            )

    return check


def _as_numpy(tensor: Any, dtype: np.dtype[Any]) -> np.ndarray:
    import torch

    if not tensor.numel():
        return np.empty(0, dtype)
    return np.asarray(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().view(dtype))


def import_torch() -> Any:
    """Return torch, or None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def main() -> None:
    """Run programs of the command line and print the number of operations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--per-program", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dump-after", type=float, default=0, help="seconds after which to print each rank's stack")
    options = parser.parse_args()
    if options.dump_after:
        faulthandler.dump_traceback_later(options.dump_after)
    done, began, seed = 0, time.time(), options.seed
    program = None
    try:
        while done < options.operations:
            with hpccoll.Communicator() as world:
                program = RandomProgram(world, seed, torch=import_torch())
                program.run(min(options.per_program, options.operations - done))
                program.close()
            done, seed = done + program.number, seed + 1
    except BaseException as error:  # noqa: BLE001 - any error ends all ranks
        last = program.last if program else ""
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}: seed {seed}: {type(error).__name__}: {error}; last: {last}\n")
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    if MPI.COMM_WORLD.rank == 0:
        ranks, seconds = MPI.COMM_WORLD.size, time.time() - began
        print(f"{done} operations on {ranks} ranks, seeds {options.seed}..{seed - 1}: none wrong; {seconds:.0f} s")


if __name__ == "__main__":
    main()
