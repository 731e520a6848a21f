"""Randomly drawn programs of torch.distributed, run over hpccoll and over gloo, whose results must be equal.

All ranks draw the same program from one seed; each rank draws its own order of waits. Values are small integers, so
sums of floats are exact and equal in every order of summation. To run many programs:

    mpirun -n 4 python -m tests.mpi.torch_programs --programs 1000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.mpi import torch_rare_calls

COUNTS = (0, 1, 2, 3, 7, 61, 128, 1000, 4099)
LARGE_COUNTS = (70_001, 300_000)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.float16,
    torch.bfloat16,
)
REDUCTIONS = {
    "SUM": dist.ReduceOp.SUM, "MAX": dist.ReduceOp.MAX, "MIN": dist.ReduceOp.MIN, "PRODUCT": dist.ReduceOp.PRODUCT,
    "BAND": dist.ReduceOp.BAND, "BOR": dist.ReduceOp.BOR, "BXOR": dist.ReduceOp.BXOR,
}  # fmt: skip
MOST_PENDING = 6
MESSAGES = ("ring", "any_source", "batch")


@dataclass(frozen=True, slots=True)
class Group:
    """The same ranks as a group of hpccoll and as a group of gloo."""

    ranks: tuple[int, ...]
    hpccoll: Any
    gloo: Any


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of a program, as all ranks draw it."""

    number: int
    kind: str
    group: int
    count: int
    dtype: torch.dtype
    reduction: str
    root: int  # a rank of the group
    asynchronous: bool
    sizes: tuple[int, ...]  # of blocks, where blocks differ in size; n * n sizes for an all_to_all


KINDS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_uneven", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all_single", "all_to_all_uneven", "gather", "scatter", "ring", "barrier",
    "all_reduce_view", "all_gather_object", "all_reduce_transposed", "all_reduce_coalesced", "all_to_all",
    "reduce_scatter_uneven", "any_source", "batch", "broadcast_object", "gather_object", "scatter_object",
    *torch_rare_calls.KINDS,
)  # fmt: skip


def make_groups(rng: random.Random) -> list[Group]:
    """Return the group of all ranks and up to two drawn groups; collective."""
    size = dist.get_world_size()
    groups = [Group(tuple(range(size)), dist.group.WORLD, dist.new_group(backend="gloo"))]
    for _ in range(2 if size > 1 else 0):
        ranks = sorted(rng.sample(range(size), rng.randint(1, size)))
        groups.append(Group(tuple(ranks), dist.new_group(ranks), dist.new_group(ranks, backend="gloo")))
    return groups


def draw_call(rng: random.Random, number: int, groups: Sequence[Group]) -> Call:
    """Draw one operation."""
    at = rng.randrange(len(groups))
    n = len(groups[at].ranks)
    dtype = rng.choice(DTYPES)
    bitwise = ("BAND", "BOR", "BXOR") if not dtype.is_floating_point else ()
    return Call(
        number,
        rng.choice(KINDS),
        at,
        rng.choice(LARGE_COUNTS) if rng.random() < 0.03 else rng.choice(COUNTS),
        dtype,
        rng.choice(("SUM", "MAX", "MIN", "PRODUCT", *bitwise)),
        rng.randrange(n),
        rng.random() < 0.6,
        tuple(rng.choice((0, 1, 2, 5, 64)) for _ in range(n * n)),
    )


def make(call: Call, rank: int, count: int, salt: int = 0) -> torch.Tensor:
    """Return a tensor of small integers that depend on the operation, the rank and `salt`."""
    start = 7 * call.number + 3 * rank + salt
    return (torch.arange(start, start + count) % 3).to(call.dtype)


class Side:
    """One side of a program: the operations on the groups of hpccoll, or on those of gloo."""

    def __init__(self, groups: Sequence[Group], backend: str) -> None:
        self.groups = [getattr(each, backend) for each in groups]
        self.ranks = [each.ranks for each in groups]
        self.is_gloo = backend == "gloo"

    def start(self, call: Call) -> tuple[Any, Callable[[], list[Any]]]:
        """Start an operation; return its works, if it is asynchronous, and a function that returns its results."""
        results: list[Any] = []
        group = self.groups[call.group]
        if call.kind in torch_rare_calls.KINDS:
            x, op = make(call, self._me(call)[0], call.count), REDUCTIONS[call.reduction]
            works = torch_rare_calls.start_rare(call, group, results, x, op)
        else:
            works = getattr(self, f"_{call.kind}")(call, group, results)
        given = works if isinstance(works, list) else [works]
        return [each for each in given if each is not None], lambda: results

    def _me(self, call: Call) -> tuple[int, int, int]:
        """Return this rank's number in the group, the size of the group, and the global rank of the root."""
        ranks = self.ranks[call.group]
        return ranks.index(dist.get_rank()), len(ranks), ranks[call.root]

    def _all_reduce(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `all_reduce`; append its results; return its handles."""
        results.append(x := make(call, self._me(call)[0], call.count))
        return dist.all_reduce(x, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _all_reduce_view(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out an all_reduce of a view; append its results; return its handles."""
        whole = make(call, self._me(call)[0], 2 * call.count + 2)
        results.append(whole)
        x = whole[1 : 1 + call.count]
        return dist.all_reduce(x, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _all_reduce_transposed(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out an all_reduce of a transposed tensor; append its results; return its handles."""
        results.append(whole := make(call, self._me(call)[0], 4 * call.count).reshape(call.count, 4))
        x = whole.t()[1:3]
        if self.is_gloo:  # gloo reduces tensors that are not contiguous in the order of their memory
            dist.all_reduce(copy := x.contiguous(), REDUCTIONS[call.reduction], group=group)
            x.copy_(copy)
            return None
        return dist.all_reduce(x, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _all_reduce_coalesced(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out an all_reduce of several tensors; append its results; return its handles."""
        results += [make(call, self._me(call)[0], call.count, salt) for salt in range(3)]
        return dist.all_reduce_coalesced(
            list(results), REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous
        )

    def _broadcast(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `broadcast`; append its results; return its handles."""
        results.append(x := make(call, self._me(call)[0], call.count))
        return dist.broadcast(x, self._me(call)[2], group=group, async_op=call.asynchronous)

    def _reduce(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `reduce`; append its results; return its handles."""
        me, _, root = self._me(call)
        x = make(call, me, call.count)
        if me == call.root:
            results.append(x)
        return dist.reduce(x, root, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _all_gather(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `all_gather`; append its results; return its handles."""
        me, n, _ = self._me(call)
        results += [torch.zeros(call.count, dtype=call.dtype) for _ in range(n)]
        return dist.all_gather(list(results), make(call, me, call.count), group=group, async_op=call.asynchronous)

    def _all_gather_uneven(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out an all_gather of tensors of different sizes; append its results; return its handles."""
        me, n, _ = self._me(call)
        if self.is_gloo:  # gloo takes tensors of one size only
            results += [make(call, rank, call.sizes[rank]) for rank in range(n)]
            return None
        results += [torch.zeros(call.sizes[rank], dtype=call.dtype) for rank in range(n)]
        return dist.all_gather(list(results), make(call, me, call.sizes[me]), group=group, async_op=call.asynchronous)

    def _all_gather_into_tensor(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `all_gather_into_tensor`; append its results; return its handles."""
        me, n, _ = self._me(call)
        results.append(out := torch.zeros(n * call.count, dtype=call.dtype))
        x = out[me * call.count : (me + 1) * call.count]  # the input is a block of the output, as in FSDP2
        x.copy_(make(call, me, call.count))
        return dist.all_gather_into_tensor(out, x, group=group, async_op=call.asynchronous)

    def _reduce_scatter(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `reduce_scatter`; append its results; return its handles."""
        me, n, _ = self._me(call)
        results.append(out := torch.zeros(call.count, dtype=call.dtype))
        listed = [make(call, me, call.count, salt) for salt in range(n)]
        return dist.reduce_scatter(out, listed, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _reduce_scatter_tensor(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `reduce_scatter_tensor`; append its results; return its handles."""
        me, n, _ = self._me(call)
        results.append(out := torch.zeros(call.count, dtype=call.dtype))
        x = make(call, me, n * call.count)
        return dist.reduce_scatter_tensor(out, x, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _all_to_all_single(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `all_to_all_single`; append its results; return its handles."""
        me, n, _ = self._me(call)
        results.append(out := torch.zeros(n * call.count, dtype=call.dtype))
        return dist.all_to_all_single(out, make(call, me, n * call.count), group=group, async_op=call.asynchronous)

    def _all_to_all_uneven(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out an all_to_all_single with blocks of different sizes; append its results; return handles."""
        me, n, _ = self._me(call)
        sent, received = list(call.sizes[me * n : (me + 1) * n]), list(call.sizes[me::n])
        results.append(out := torch.zeros(sum(received), dtype=call.dtype))
        x = make(call, me, sum(sent))
        return dist.all_to_all_single(out, x, received, sent, group=group, async_op=call.asynchronous)

    def _all_to_all(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `all_to_all`; append its results; return its handles."""
        if self.is_gloo:  # gloo has no all_to_all of lists
            return self._all_to_all_uneven(call, group, results)
        me, n, _ = self._me(call)
        results.append(out := torch.zeros(sum(call.sizes[me::n]), dtype=call.dtype))
        sent = call.sizes[me * n : (me + 1) * n]
        listed = [each.clone() for each in make(call, me, sum(sent)).split(sent)]
        return dist.all_to_all(list(out.split(call.sizes[me::n])), listed, group=group, async_op=call.asynchronous)

    def _reduce_scatter_uneven(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out a reduce_scatter of tensors of different sizes; append its results; return its handles."""
        me, n, _ = self._me(call)
        listed = [make(call, me, call.sizes[rank], rank) for rank in range(n)]
        if self.is_gloo:  # gloo takes tensors of one size only
            dist.all_reduce(joined := torch.cat(listed), REDUCTIONS[call.reduction], group=group)
            results.append(joined.split(call.sizes[:n])[me])
            return None
        results.append(out := torch.zeros(call.sizes[me], dtype=call.dtype))
        return dist.reduce_scatter(out, listed, REDUCTIONS[call.reduction], group=group, async_op=call.asynchronous)

    def _gather(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `gather`; append its results; return its handles."""
        me, n, root = self._me(call)
        if me == call.root:
            results += [torch.zeros(call.count, dtype=call.dtype) for _ in range(n)]
        listed = list(results) if me == call.root else None
        return dist.gather(make(call, me, call.count), listed, root, group=group, async_op=call.asynchronous)

    def _scatter(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `scatter`; append its results; return its handles."""
        me, n, root = self._me(call)
        results.append(out := torch.zeros(call.count, dtype=call.dtype))
        listed = [make(call, me, call.count, salt) for salt in range(n)] if me == call.root else None
        return dist.scatter(out, listed, root, group=group, async_op=call.asynchronous)

    def _ring(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Send to the next rank and receive from the previous one; append the result; return the handles."""
        me, n, _ = self._me(call)
        if n == 1:
            return None
        ranks = self.ranks[call.group]
        results.append(out := torch.zeros(call.count, dtype=call.dtype))
        sent = dist.isend(make(call, me, call.count), ranks[(me + 1) % n], group=group, tag=call.number % 100)
        received = dist.irecv(out, ranks[(me - 1) % n], group=group, tag=call.number % 100)
        return [sent, received]

    def _any_source(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out receives from any rank; append its results; return its handles."""
        me, n, root = self._me(call)
        count = max(call.count, 1)  # gloo receives no empty tensor from any source
        if me != call.root:
            return dist.isend(make(call, me, count), root, group=group, tag=call.number)
        received = [torch.zeros(count, dtype=call.dtype) for _ in range(n - 1)]
        for x in received:
            dist.irecv(x, group=group, tag=call.number).wait()
        results += sorted(received, key=lambda x: x.view(torch.uint8).tolist())
        return None

    def _batch(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out a batch of sends and receives; append its results; return its handles."""
        me, n, _ = self._me(call)
        ranks, operations = self.ranks[call.group], []
        for peer in range(n):
            if peer != me:
                results.append(out := torch.zeros(call.count, dtype=call.dtype))
                sent = make(call, me, call.count, peer)
                operations.append(dist.P2POp(dist.isend, sent, ranks[peer], group, call.number))
                operations.append(dist.P2POp(dist.irecv, out, ranks[peer], group, call.number))
        return dist.batch_isend_irecv(operations) if operations else None

    def _barrier(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `barrier`; return its handle, if it is asynchronous."""
        del results
        return dist.barrier(group, async_op=call.asynchronous)

    def _all_gather_object(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `all_gather_object`; append its results; return its handles."""
        me, n, _ = self._me(call)
        results += [None] * n
        dist.all_gather_object(results, ("rank", me, call.number), group=group)

    def _broadcast_object(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `broadcast_object`; append its results; return its handles."""
        me, _, root = self._me(call)
        results += [("root", call.number, call.sizes), call.number] if me == call.root else [None, None]
        dist.broadcast_object_list(results, root, group=group)

    def _gather_object(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `gather_object`; append its results; return its handles."""
        me, n, root = self._me(call)
        if me == call.root:
            results += [None] * n
        dist.gather_object(("rank", me), results if me == call.root else None, root, group=group)

    def _scatter_object(self, call: Call, group: Any, results: list[Any]) -> Any:
        """Carry out `scatter_object`; append its results; return its handles."""
        me, n, root = self._me(call)
        results.append(None)
        listed: Any = [("for", rank, call.sizes[rank]) for rank in range(n)]
        dist.scatter_object_list(results, listed if me == call.root else [None], root, group=group)


def run_program(seed: int, groups: Sequence[Group], operations: int) -> int:
    """Run one program on both sides; return the number of operations, or raise AssertionError at a difference."""
    shared, own = random.Random(seed), random.Random(f"{seed} {dist.get_rank()}")
    calls = [draw_call(shared, number, groups) for number in range(operations)]
    outcomes = []
    for backend in ("gloo", "hpccoll"):
        side, pending, finished = Side(groups, backend), [], {}
        for call in calls:
            if dist.get_rank() not in groups[call.group].ranks:
                continue
            works, results = side.start(call)
            finished[call.number] = results
            own.shuffle(works)
            if call.asynchronous or call.kind in MESSAGES:
                pending += works
            else:
                wait_for(works)
            while len(pending) > MOST_PENDING or (pending and own.random() < 0.2):
                wait_for([pending.pop(own.randrange(len(pending)))])
        own.shuffle(pending)
        wait_for(pending)
        outcomes.append({number: results() for number, results in finished.items()})
    for call in calls:
        compare(seed, call, *(each.get(call.number, []) for each in outcomes))
    return operations


def wait_for(works: Sequence[Any]) -> None:
    """Wait for operations, in order."""
    for work in works:
        if work is not None:
            work.wait()


def compare(seed: int, call: Call, expected: list[Any], found: list[Any]) -> None:
    """Raise AssertionError unless the results of both sides are equal in every bit."""
    assert len(expected) == len(found), (seed, call)
    for one, other in zip(expected, found, strict=True):
        equal = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        assert equal, f"seed {seed}, rank {dist.get_rank()}, {call}: gloo {one}, hpccoll {other}"


def main() -> None:
    """Run many programs, and print how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--operations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("hpccoll")
    torch.set_num_threads(1)
    groups, began = make_groups(random.Random(options.seed)), time.monotonic()
    for seed in range(options.seed, options.seed + options.programs):
        run_program(seed, groups, options.operations)
    dist.barrier()
    if dist.get_rank() == 0:
        print(
            f"{options.programs} programs of {options.operations} operations on {dist.get_world_size()} ranks equal "
            f"gloo's results, {time.monotonic() - began:.0f} s"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    import hpccoll.torch  # noqa: F401 - registers the backend

    main()
