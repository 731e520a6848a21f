"""Compare whole programs in mpi4py and in hpccoll: Jacobi's iteration, conjugate gradients, and k-means.

The two versions of a program share their arithmetic and their arrays, and differ in their communication calls only. A
sample is a number of steps back to back. Results are compared with those of one process.

    mpirun -n 2 python bench/programs.py --json programs.jsonl
    mpirun -n 4 python bench/programs.py

A size is the number of bytes of the largest array over all ranks: a grid of 256 x 256 numbers is 512K.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import isqrt
from typing import Any, Protocol

import numpy as np
from compare import Bench, Case, Must, Side
from mpi4py import MPI
from numpy.typing import NDArray
from script import Result, main

from hpccoll import PROC_NULL
from hpccoll.communicator import Communicator

Floats = NDArray[np.float64]
LIBRARY, OWN = "mpi4py", "hpccoll"
CHECKED_STEPS, SAMPLE_BYTES, MOST_STEPS = 6, 64 * 2**20, 20
MUST = Must("no slower than mpi4py", LIBRARY)


class Calls(Protocol):
    """The communication calls of a program."""

    def exchange(self, edges: tuple[Floats, Floats], halos: tuple[Floats, Floats]) -> None:
        """Send the first and the last row to the previous and the next rank, and receive theirs into `halos`."""

    def add(self, x: Floats) -> None:
        """Replace `x` by the sum over all ranks."""

    def find_max(self, x: Floats) -> None:
        """Replace `x` by the maximum over all ranks."""


class LibraryCalls:
    """The calls in mpi4py."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._previous = comm.rank - 1 if comm.rank else MPI.PROC_NULL
        self._next = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL

    def exchange(self, edges: tuple[Floats, Floats], halos: tuple[Floats, Floats]) -> None:
        """See `Calls`."""
        self._comm.Sendrecv(edges[0], self._previous, recvbuf=halos[1], source=self._next)
        self._comm.Sendrecv(edges[1], self._next, recvbuf=halos[0], source=self._previous)

    def add(self, x: Floats) -> None:
        """See `Calls`."""
        self._comm.Allreduce(MPI.IN_PLACE, x)

    def find_max(self, x: Floats) -> None:
        """See `Calls`."""
        self._comm.Allreduce(MPI.IN_PLACE, x, MPI.MAX)


class OwnCalls:
    """The calls in hpccoll."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._previous = comm.rank - 1 if comm.rank else PROC_NULL
        self._next = comm.rank + 1 if comm.rank + 1 < comm.size else PROC_NULL

    def exchange(self, edges: tuple[Floats, Floats], halos: tuple[Floats, Floats]) -> None:
        """See `Calls`."""
        self._comm.sendrecv(edges[0], self._previous, self._next, out=halos[1])
        self._comm.sendrecv(edges[1], self._next, self._previous, out=halos[0])

    def add(self, x: Floats) -> None:
        """See `Calls`."""
        self._comm.all_reduce(x)

    def find_max(self, x: Floats) -> None:
        """See `Calls`."""
        self._comm.all_reduce(x, "max")


class OneProcess:
    """The calls of a program that runs in one process: they do nothing."""

    def exchange(self, edges: tuple[Floats, Floats], halos: tuple[Floats, Floats]) -> None:
        """See `Calls`."""

    def add(self, x: Floats) -> None:
        """See `Calls`."""

    def find_max(self, x: Floats) -> None:
        """See `Calls`."""


class Program(Protocol):
    """A program on a block of rows of its data: `rank` of `ranks` blocks."""

    name: str

    def __init__(self, nbytes: int, rank: int, ranks: int) -> None: ...

    def reset(self) -> None:
        """Return to the initial state."""

    def step(self, calls: Calls) -> None:
        """Make one step of the iteration."""

    def read_result(self) -> Floats:
        """Return this block's result, shape (rows, columns)."""


def find_block(rows: int, rank: int, ranks: int) -> slice:
    """Return the rows of a rank."""
    return slice(rows * rank // ranks, rows * (rank + 1) // ranks)


class Jacobi:
    """Laplace's equation on a square grid with fixed edges; a step replaces each number by its neighbours' mean.

    The program stops when the largest change is small, so each step needs the maximum over all ranks.
    """

    name = "Jacobi"

    def __init__(self, nbytes: int, rank: int, ranks: int) -> None:
        self.n = isqrt(nbytes // 8)
        rows = find_block(self.n, rank, ranks)
        start = np.zeros((self.n + 2, self.n + 2))
        start[0], start[:, -1] = 1.0, 2.0
        self._start = start[rows.start : rows.stop + 2]  # the rank's rows between two halo rows
        self._change = np.empty(1)
        self.reset()

    def reset(self) -> None:
        """See `Program`."""
        self._u: Floats = self._start.copy()
        self._new: Floats = self._start.copy()

    def step(self, calls: Calls) -> None:
        """See `Program`."""
        u, new = self._u, self._new
        calls.exchange((u[1], u[-2]), (u[0], u[-1]))
        inner = new[1:-1, 1:-1]
        np.add(u[:-2, 1:-1], u[2:, 1:-1], out=inner)
        inner += u[1:-1, :-2]
        inner += u[1:-1, 2:]
        inner *= 0.25
        self._change[0] = np.abs(inner - u[1:-1, 1:-1]).max()
        calls.find_max(self._change)
        self._u, self._new = new, u

    def read_result(self) -> Floats:
        """See `Program`."""
        return np.asarray(self._u[1:-1])


class ConjugateGradients:
    """Conjugate gradients for Poisson's equation on a square grid; a step needs neighbour rows and two sums."""

    name = "conjugate gradients"

    def __init__(self, nbytes: int, rank: int, ranks: int) -> None:
        self.n = isqrt(nbytes // 8)
        rows = find_block(self.n, rank, ranks)
        whole = np.sin(np.arange(1, self.n * self.n + 1.0)).reshape(self.n, self.n)
        self._right_side = whole[rows]
        self._sum = np.empty(1)
        self.reset()

    def reset(self) -> None:
        """See `Program`."""
        self._x: Floats = np.zeros_like(self._right_side)
        self._residual: Floats = self._right_side.copy()
        rows, columns = self._x.shape
        self._direction, self._product = np.zeros((rows + 2, columns + 2)), np.empty((rows, columns))
        self._direction[1:-1, 1:-1] = self._residual
        self._norm = 0.0

    def step(self, calls: Calls) -> None:
        """See `Program`."""
        p, product = self._direction, self._product
        calls.exchange((p[1], p[-2]), (p[0], p[-1]))
        inner = p[1:-1, 1:-1]
        np.multiply(inner, 4.0, out=product)
        for neighbours in (p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]):
            product -= neighbours
        norm = self._norm or self._sum_products(calls, self._residual, self._residual)
        length = norm / self._sum_products(calls, inner, product)
        self._x += length * inner
        self._residual -= length * product
        self._norm = self._sum_products(calls, self._residual, self._residual)
        inner *= self._norm / norm
        inner += self._residual

    def _sum_products(self, calls: Calls, x: Floats, y: Floats) -> float:
        """Return the scalar product of two vectors that are distributed over the ranks."""
        self._sum[0] = np.einsum("ij,ij", x, y)
        calls.add(self._sum)
        return float(self._sum[0])

    def read_result(self) -> Floats:
        """See `Program`."""
        return self._x


class KMeans:
    """Lloyd's algorithm for the means of clusters of points; a step sums points and counts over all ranks."""

    name = "k-means"
    CLUSTERS, DIMENSIONS = 16, 8

    def __init__(self, nbytes: int, rank: int, ranks: int) -> None:
        count = nbytes // 8 // self.DIMENSIONS
        whole = np.random.default_rng(1).normal(size=(count, self.DIMENSIONS))
        self._first, self._points = whole[: self.CLUSTERS].copy(), whole[find_block(count, rank, ranks)]
        self._sums = np.empty((self.CLUSTERS, self.DIMENSIONS + 1))
        self.reset()

    def reset(self) -> None:
        """See `Program`."""
        self._means = self._first.copy()

    def step(self, calls: Calls) -> None:
        """See `Program`."""
        distances = (self._means**2).sum(axis=1) - 2 * self._points @ self._means.T
        nearest = np.argmin(distances, axis=1)
        for dimension in range(self.DIMENSIONS):
            self._sums[:, dimension] = np.bincount(nearest, self._points[:, dimension], self.CLUSTERS)
        self._sums[:, -1] = np.bincount(nearest, minlength=self.CLUSTERS)
        calls.add(self._sums)
        self._means = self._sums[:, :-1] / np.maximum(self._sums[:, -1:], 1)

    def read_result(self) -> Floats:
        """See `Program`; the means of all clusters, on every rank."""
        return self._means


PROGRAMS: tuple[Callable[[int, int, int], Program], ...] = (Jacobi, ConjugateGradients, KMeans)


def measure(bench: Bench) -> Iterator[Result]:
    """Yield a case per program and size."""
    for program in PROGRAMS:
        for nbytes in bench.sizes:
            yield bench.run(make_case(bench, program, nbytes))


def make_case(bench: Bench, program: Callable[[int, int, int], Program], nbytes: int) -> Case:
    """Return the case of a program."""
    comm = bench.comm
    block, expected = program(nbytes, comm.rank, comm.size), compute_expected(program, nbytes, comm.rank, comm.size)
    library, own = LibraryCalls(comm), OwnCalls(bench.own)
    sides = [
        Side(LIBRARY, partial(block.step, library)),
        Side(f"{LIBRARY} again (A/A)", partial(block.step, library)),
        Side(OWN, partial(block.step, own), (MUST,)),
    ]

    def count_wrong(step: Callable[[], Any]) -> int:
        """Run a version of the program, and return the number of wrong elements on this rank."""
        block.reset()
        for _ in range(CHECKED_STEPS):
            step()
        return int(np.count_nonzero(~np.isclose(block.read_result(), expected, rtol=1e-9, atol=1e-12)))

    steps = max(1, min(MOST_STEPS, SAMPLE_BYTES // nbytes))
    return Case(block.name, nbytes, steps, sides, before=block.reset, check=count_wrong)


def compute_expected(program: Callable[[int, int, int], Program], nbytes: int, rank: int, ranks: int) -> Floats:
    """Return this rank's part of the result of one process."""
    whole = program(nbytes, 0, 1)
    for _ in range(CHECKED_STEPS):
        whole.step(OneProcess())
    result = whole.read_result()
    return result if isinstance(whole, KMeans) else result[find_block(len(result), rank, ranks)]


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "512K,32M", measure))
