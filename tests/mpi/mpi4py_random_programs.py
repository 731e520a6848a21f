"""Runs random mixed programs over hpccoll and over plain mpi4py, operation by operation, and compares the results.

`mpirun -n 3 python -m hpccoll.mpi4py -m tests.mpi.mpi4py_random_programs --operations 20000 --seed 1`

All ranks draw the operations, sizes and roots from one sequence of random numbers. Each rank draws the forms of its
buffers from a sequence of its own. Each communicator has a plain twin of the same ranks.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from tests.mpi.mpi4py_buffer_forms import draw_buffer

DTYPES = ["float64", "float64", "int32", "int64", "uint8", "float32", "complex128"]
SIZES = [1, 2, 3, 7, 60, 500, 512, 1000, 5000, 40000]
OPS = [MPI.SUM, MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD, MPI.BXOR, MPI.LAND]
MOST_COMMUNICATORS = 7
MOST_REQUESTS = 6


class RandomProgram:
    """The state of one program: communicators with their twins, requests in flight, and the random numbers."""

    def __init__(self, seed: int) -> None:
        self.world = MPI.COMM_WORLD
        self.shared = random.Random(seed)
        self.own = random.Random(seed * 1000 + self.world.rank + 1)
        self.comms = [(self.world, MPI.Intracomm(MPI.Intracomm(self.world).Dup()))]
        self.requests: list[tuple[Any, Callable[[], None]]] = []
        self.wrong = self.done = 0
        self.counts: dict[str, int] = {}

    def run(self, operations: int) -> None:
        """Run a number of operations, then complete the operations in flight."""
        steps = [
            (self.collective, 40), (self.objects, 30), (self.non_blocking, 8), (self.persistent, 3), (self.messages, 8),
            (self.wildcard, 4), (self.change_communicators, 3), (self.wait, 4),
        ]  # fmt: skip
        functions, weights = zip(*steps, strict=True)
        for _ in range(operations):
            self.shared.choices(functions, weights)[0]()
            self.done += 1
            if len(self.requests) >= MOST_REQUESTS:
                self.wait()
        self.wait()

    def expect(self, name: str, got: Any, expected: Any) -> None:
        """Count an operation, and a wrong result."""
        self.counts[name] = self.counts.get(name, 0) + 1
        if not is_same(got, expected):
            self.wrong += 1
            print(
                f"operation {self.done}: {name} on rank {self.world.rank}: {got!r} is not {expected!r}"[:500],
                flush=True,
            )

    def draw(self) -> tuple[Any, Any, int, np.dtype[Any], int]:
        """Return a communicator and its twin, a root, a dtype and a size; the same on all its ranks."""
        comm, twin = self.comms[self.shared.randrange(len(self.comms))]
        index, dtype, size = self.shared.random(), self.shared.choice(DTYPES), self.shared.choice(SIZES)
        return comm, twin, int(index * comm.size), np.dtype(dtype), size

    def values(self, dtype: np.dtype[Any], size: int) -> Any:
        """Return random elements, of which sums and products are exact."""
        return np.array(self.own.choices([0, 1, 2], k=size)).astype(dtype)

    def draw_op(self, dtype: np.dtype[Any]) -> MPI.Op:
        """Return a reduction that MPI defines for a dtype."""
        op = self.shared.choice(OPS)
        if any(op == other for other in (MPI.LAND, MPI.BXOR)) and dtype.kind not in "iu":
            return MPI.SUM
        return MPI.SUM if dtype.kind == "c" and op not in (MPI.SUM, MPI.PROD) else op

    def collective(self) -> None:
        """Run a blocking collective of buffers."""
        comm, twin, root, dtype, size = self.draw()
        name = self.shared.choice(
            ["Bcast", "Allreduce", "Allreduce", "Reduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Gather",
             "Scatter", "Scan", "Exscan", "Barrier", "Allgatherv", "Alltoallv", "Gatherv", "Scatterv",
             "Reduce_scatter"]
        )  # fmt: skip
        op = self.draw_op(dtype)
        is_in_place = self.own.random() < 0.3
        if name == "Barrier":
            comm.Barrier()
            return
        if name.endswith("v") or name == "Reduce_scatter":
            self.uneven(name, comm, twin, root, dtype)
            return
        n = comm.size
        sent = size * (n if name in ("Alltoall", "Reduce_scatter_block", "Scatter") else 1)
        received = size * (n if name in ("Allgather", "Alltoall", "Gather") else 1)
        source, before = self.values(dtype, sent), self.values(dtype, received)
        call: dict[str, Any] = (
            {"op": op} if name in ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan") else {}
        )
        call |= {"root": root} if name in ("Reduce", "Gather", "Scatter", "Bcast") else {}
        reduces = "op" in call
        if name == "Bcast":
            given = draw_buffer(self.own, source, reduces=False)
            comm.Bcast(given.given, **call)
            twin.Bcast(source, **call)
            self.finish(name, given, source)
            return
        if (
            name in ("Allreduce", "Scan", "Exscan", "Reduce")
            and is_in_place
            and (name != "Reduce" or comm.rank == root)
        ):
            given = draw_buffer(self.own, before, reduces=True)
            getattr(comm, name)(MPI.IN_PLACE, given.given, **call)
            getattr(twin, name)(MPI.IN_PLACE, before, **call)
            if name != "Exscan" or comm.rank:
                self.finish(name, given, before)
            return
        if name in ("Allgather", "Alltoall") and self.shared.random() < 0.3:
            given = draw_buffer(self.own, before, blocks=n)
            getattr(comm, name)(MPI.IN_PLACE, given.given)
            getattr(twin, name)(MPI.IN_PLACE, before)
            self.finish(name, given, before)
            return
        if name in ("Gather", "Scatter") and is_in_place and comm.rank == root:
            content = before if name == "Gather" else source
            given = draw_buffer(self.own, content, blocks=n)
            whole = (MPI.IN_PLACE, given.given) if name == "Gather" else (given.given, MPI.IN_PLACE)
            getattr(comm, name)(*whole, **call)
            getattr(twin, name)(*(content if each is given.given else each for each in whole), **call)
            self.finish(name, given, content)
            return
        blocks = n if name in ("Alltoall", "Reduce_scatter_block", "Scatter") else 1
        x = draw_buffer(self.own, source, reduces=reduces, blocks=blocks)
        y = draw_buffer(
            self.own, before, reduces=reduces, blocks=n if name in ("Allgather", "Alltoall", "Gather") else 1
        )
        has_input, has_result = (
            name != "Scatter" or comm.rank == root,
            name not in ("Reduce", "Gather") or comm.rank == root,
        )
        getattr(comm, name)(x.given if has_input else None, y.given if has_result else None, **call)
        getattr(twin, name)(source if has_input else None, before if has_result else None, **call)
        if has_result and (name != "Exscan" or comm.rank):
            self.expect(name, y.read(), before)
        x.free()
        y.free()

    def finish(self, name: str, given: Any, expected: Any) -> None:
        """Compare a buffer to the expected elements, and free its datatype."""
        self.expect(name, given.read(), expected)
        given.free()

    def uneven(self, name: str, comm: Any, twin: Any, root: int, dtype: np.dtype[Any]) -> None:
        """Run a collective of blocks of different sizes."""
        n, rank = comm.size, comm.rank
        shared = random.Random(self.shared.random())  # the number of ranks may differ between parts of the job
        table = [[shared.choice([0, 1, 5, 300]) for _ in range(n)] for _ in range(n)]
        counts, own = table[0], table[0][rank]
        sent, received = (table[rank], [row[rank] for row in table])
        if name != "Alltoallv":
            sent = counts if name in ("Scatterv", "Reduce_scatter") else [own]
            received = counts if name in ("Allgatherv", "Gatherv") else [own]
        x, y = self.values(dtype, sum(sent)), np.zeros(sum(received), dtype)
        z = y.copy()
        is_root = rank == root
        for to, out in ((comm, y), (twin, z)):
            if name == "Alltoallv":
                to.Alltoallv([x, sent], [out, received])
            elif name == "Allgatherv":
                to.Allgatherv(x, [out, counts])
            elif name == "Gatherv":
                to.Gatherv(x, [out, counts] if is_root else None, root)
            elif name == "Scatterv":
                to.Scatterv([x, counts] if is_root else None, out, root)
            else:
                to.Reduce_scatter(x, out, counts)
        if name != "Gatherv" or is_root:
            self.expect(name, y, z)

    def draw_object(self, dtype: np.dtype[Any], size: int) -> Any:
        """Return a Python object of this rank's choice."""
        x = self.values(dtype, size)
        order = np.asfortranarray(x.reshape(-1, 2)) if size % 2 == 0 else x[:, None]
        nested = {"a": x, "b": [x, 1, (x[:5], "c")]}
        return self.own.choice(
            [x, 1, 2.5, "text", None, order, nested, (x, x), x[::2], [1] * size, np.float32(3), b"b" * size]
        )

    def objects(self) -> None:
        """Run a collective of Python objects."""
        comm, twin, root, dtype, size = self.draw()
        name = self.shared.choice(
            ["bcast", "allreduce", "allreduce", "reduce", "allgather", "gather", "scatter", "alltoall", "scan"]
        )
        if name in ("allreduce", "reduce", "scan"):
            kind = self.shared.randrange(4)
            x = self.values(dtype, size)
            obj: Any = [x, int(x[0].real), float(x[0].real), x if self.own.random() < 0.5 else x[::1]][kind]
            op = self.shared.choice([MPI.SUM, MPI.PROD] if kind in (0, 3) else [MPI.SUM, MPI.PROD, MPI.MAX, MPI.LAND])
            call: dict[str, Any] = {"op": op, "root": root} if name == "reduce" else {"op": op}
            self.expect(name, getattr(comm, name)(obj, **call), getattr(twin, name)(obj, **call))
            return
        many = name in ("scatter", "alltoall")
        obj = [self.draw_object(dtype, size) for _ in range(comm.size)] if many else self.draw_object(dtype, size)
        if self.shared.random() < 0.3 and not many:
            obj = self.values(dtype, size)
        call = {"root": root} if name in ("bcast", "gather", "scatter") else {}
        obj = obj if name != "scatter" or comm.rank == root else None
        self.expect(name, getattr(comm, name)(obj, **call), getattr(twin, name)(obj, **call))

    def draw_form(self, name: str, root: int, n: int, dtype: np.dtype[Any], size: int) -> Callable[[], Any]:
        """Return a function that returns new arguments of a non-blocking or persistent collective, and its result."""
        many = size * n
        sizes = {"alltoall": (many, many), "allgather": (size, many), "reduce_scatter_block": (many, size)}
        sent, received = sizes.get(name, (size, size))
        x, before = self.values(dtype, sent), self.values(dtype, received)

        def make() -> tuple[tuple[Any, ...], Any]:
            if name == "bcast":
                given = x.copy()
                return (given, root), given
            result = before.copy()
            return (x, result), result

        return make

    def non_blocking(self) -> None:
        """Start a collective that `wait` completes beside other requests."""
        comm, twin, root, dtype, size = self.draw()
        name = self.shared.choice(
            ["allreduce", "allreduce", "bcast", "allgather", "alltoall", "scan", "reduce_scatter_block"]
        )
        make = self.draw_form(name, root, comm.size, dtype, size)
        (given, y), (expected, z) = make(), make()
        request, other = (getattr(to, f"I{name}")(*args) for to, args in ((comm, given), (twin, expected)))

        def check(kept: Any = (given, expected)) -> None:  # mpi4py keeps no buffer of a non-blocking call alive
            other.Wait()
            self.expect("nonblocking", y, z)
            del kept

        self.requests.append((request, check))

    def persistent(self) -> None:
        """Prepare a collective, and run it a few times between other collectives."""
        comm, twin, root, dtype, size = self.draw()
        name = self.shared.choice(["Allreduce", "Bcast", "Allgather", "Alltoall"])
        make = self.draw_form(name.lower(), root, comm.size, dtype, size)
        (given, y), (expected, z) = make(), make()
        request = getattr(comm, f"{name}_init")(*given)
        for _ in range(3):
            request.Start()
            comm.bcast(None, root=root)
            request.Wait()
        getattr(twin, name)(*expected)
        self.expect("persistent", y, z)
        request.Free()

    def messages(self) -> None:
        """Send a message to the next rank, blocking or not, as a buffer or an object."""
        comm, _, _, dtype, size = self.draw()
        n, rank, tag = comm.size, comm.rank, self.shared.randrange(100)
        x, y = np.full(size, rank, dtype), np.zeros(size, dtype)
        after, before = (rank + 1) % n, (rank - 1) % n
        if self.shared.random() < 0.4:
            got = comm.sendrecv((rank, x), after, tag, source=before, recvtag=tag)
            self.expect("sendrecv", got, (before, np.full(size, before, dtype)))
            return
        receive, send = comm.Irecv(y, before, tag), comm.Isend(x, after, tag)
        if self.shared.random() < 0.5:
            comm.Barrier()
        MPI.Request.Waitall([receive, send])
        self.expect("message", y, np.full(size, before, dtype))

    def wildcard(self) -> None:
        """Receive messages of all ranks on one rank, in any order."""
        comm, _, root, dtype, size = self.draw()
        tag = 200 + self.done % 100
        send = comm.Isend(np.full(size, comm.rank, dtype), root, tag)
        if comm.rank == root:
            seen, status = [], MPI.Status()
            for _ in range(comm.size):
                y = np.zeros(size, dtype)
                comm.Recv(y, MPI.ANY_SOURCE, tag, status)
                self.expect("wildcard", y, np.full(size, status.source, dtype))
                seen.append(status.source)
            self.expect("wildcard", sorted(seen), list(range(comm.size)))
        send.Wait()
        comm.Barrier()  # a message with this tag may be sent again

    def change_communicators(self) -> None:
        """Make a communicator from another, or free one."""
        if len(self.comms) >= MOST_COMMUNICATORS:
            self.wait()
            for comm in self.comms.pop(1 + self.shared.randrange(len(self.comms) - 1)):
                comm.Free()
            return
        comm, twin, *_ = self.draw()
        kind = self.shared.randrange(5)
        if kind == 0:
            new = comm.Dup(), twin.Dup()
        elif kind == 1:
            new = comm.Split(comm.rank % 2, -comm.rank), twin.Split(comm.rank % 2, -comm.rank)
        elif kind == 2:
            new = comm.Create_cart([comm.size], [True]), twin.Create_cart([comm.size], [True])
        elif kind == 3:
            new = comm.Create_dist_graph_adjacent([0], [0]), twin.Create_dist_graph_adjacent([0], [0])
        else:
            new = comm.Create_group(comm.group), twin.Create_group(twin.group)
        self.comms.append(new)

    def wait(self) -> None:
        """Complete all requests at once."""
        MPI.Request.Waitall([request for request, _ in self.requests])
        for _, check in self.requests:
            check()
        self.requests.clear()


def is_same(a: Any, b: Any) -> bool:
    """Whether two results are equal, in type, dtype, shape and order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    return bool(a == b)


def main() -> None:
    """Run a program and print the wrong results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--operations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    program = RandomProgram(arguments.seed)
    program.run(arguments.operations)
    wrong = MPI.Intracomm(program.world).allreduce(program.wrong)
    if program.world.rank == 0:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(program.counts.items()))
        print(f"{program.done} operations: {wrong or 'none'} wrong; results compared: {kinds}")


if __name__ == "__main__":
    main()
