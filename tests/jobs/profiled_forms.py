"""The recorded calls of mpi4py that profiled_calls.py does not make itself; it runs `call_every_form`.

Blocks have `BLOCK` elements per rank. `take` adds results to the digest of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

BLOCK, TAG = 12, 4
Take = Callable[..., None]


def call_every_form(comm: Any, x: np.ndarray, take: Take) -> None:
    """Make each call; `x` has a block per rank."""
    call_collectives(comm, x, take)
    call_sends(comm, x, take)
    call_probes(comm, x, take)
    call_request_lists(comm, x, take)
    call_neighbors(comm, x, take)
    make_communicators(comm, take)
    take(comm.reduce(comm.rank), comm.barrier(), comm.exscan(1))


def list_collectives(comm: Any, x: np.ndarray) -> Iterator[tuple[str, np.ndarray, tuple[Any, ...]]]:
    """Yield the name of a blocking collective, the array of its results, and its arguments."""
    size, is_root, y, block = comm.size, comm.rank == 0, np.zeros_like(x), np.zeros(BLOCK)
    own, whole, counts = x[:BLOCK].copy(), np.zeros(size * len(x)), [BLOCK] * size
    places, types = [8 * BLOCK * rank for rank in range(size)], [MPI.DOUBLE] * size
    yield "Allreduce", y, (x, y)
    yield "Reduce", y, (x, y if is_root else None)
    yield "Bcast", own, ([own, MPI.DOUBLE], size - 1)
    yield "Allgather", whole, (x, whole)
    yield "Allgatherv", y, (own, [y, counts])
    yield "Gather", whole, (x, whole if is_root else None)
    yield "Gatherv", y, (own, [y, counts] if is_root else None)
    yield "Scatter", block, (x if is_root else None, block)
    yield "Scatterv", block, ([x, counts] if is_root else None, block)
    yield "Alltoall", y, (x, y)
    yield "Alltoallv", y, ([x, counts], [y, counts])
    yield "Alltoallw", y, ([x, (counts, places), types], [y, (counts, places), types])
    yield "Reduce_scatter", block, (x, block, counts)
    yield "Reduce_scatter_block", block, (x, block)
    yield "Scan", y, (x, y)
    yield "Exscan", y, (x, y)
    yield "Barrier", block, ()


def call_collectives(comm: Any, x: np.ndarray, take: Take) -> None:
    """Make each collective of buffers in its blocking, non-blocking and persistent form."""
    for name, results, arguments in list_collectives(comm, x):
        getattr(comm, name)(*arguments)
        take(results)
        getattr(comm, f"I{name.lower()}")(*arguments).Wait()
        take(results)
        prepared = getattr(comm, f"{name}_init")(*arguments)
        prepared.Start()
        prepared.Wait()
        prepared.Free()
        take(results)


def call_sends(comm: Any, x: np.ndarray, take: Take) -> None:
    """Send around a ring in each mode of MPI; the receives have begun before, as ready sends require."""
    right, left, y = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, np.zeros_like(x)
    MPI.Attach_buffer(bytearray(2**16))
    for name in (f"{mode}send" for mode in ("", "s", "b", "r")):
        for form in (name.capitalize(), f"I{name}", f"{name.capitalize()}_init"):
            received = comm.Irecv(y, left, TAG)
            comm.Barrier()
            request = getattr(comm, form)(x, right, TAG)
            if form.endswith("_init"):
                request.Start()
            if request is not None:
                request.Wait()
            if form.endswith("_init"):
                request.Free()
            received.Wait()
            take(y)
        for form in (name, f"i{name}") if name != "rsend" else ():
            received = comm.irecv(source=left, tag=TAG)
            request = getattr(comm, form)((form, comm.rank), right, TAG)
            take(received.wait())
            if request is not None:
                request.wait()
    MPI.Detach_buffer()
    comm.Sendrecv_replace(y, right, TAG, left, TAG)
    take(y)


def call_probes(comm: Any, x: np.ndarray, take: Take) -> None:
    """Wait for a message in four ways, then receive it."""
    right, left, y = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, np.zeros_like(x)
    for name in ("Probe", "Mprobe", "probe", "mprobe"):
        sends = name.islower()
        request = comm.isend("found", right, TAG) if sends else comm.Isend(x, right, TAG)
        found = getattr(comm, name)(left, TAG)
        if "m" in name.lower():
            take(found.recv() if sends else found.Recv(y))
        else:
            take(comm.recv(None, left, TAG) if sends else comm.Recv(y, left, TAG))
        take(y)
        request.Wait()


def call_request_lists(comm: Any, x: np.ndarray, take: Take) -> None:
    """Complete a receive and a send by each function that takes a list of requests."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    names = [f"{kind}{form}" for kind in ("Wait", "Test") for form in ("all", "any", "some")]
    for name in (*names, *map(str.lower, names)):
        y = np.zeros_like(x)
        if name.islower():
            requests = [comm.irecv(source=left, tag=TAG), comm.isend(name, right, TAG)]
        else:
            requests = [comm.Irecv(y, left, TAG), comm.Isend(x, right, TAG)]
        while any(request != MPI.REQUEST_NULL for request in requests):
            getattr(MPI.Request, name)(requests)
        take(y)
    request = comm.isend("last", right, TAG)
    take(comm.recv(source=left, tag=TAG))
    while not request.test()[0]:
        pass


def call_neighbors(comm: Any, x: np.ndarray, take: Take) -> None:
    """Exchange blocks with the two neighbors in a ring of a Cartesian communicator."""
    grid = comm.Create_cart([comm.size], periods=[True])
    own, both, y = x[:BLOCK].copy(), np.concatenate([x[:BLOCK], x[:BLOCK] + 1]), np.zeros(2 * BLOCK)
    counts, places, types = [BLOCK, BLOCK], [0, 8 * BLOCK], [MPI.DOUBLE, MPI.DOUBLE]
    calls: dict[str, tuple[Any, Any]] = {
        "allgather": (own, y), "allgatherv": (own, [y, counts]), "alltoall": (both, y),
        "alltoallv": ([both, counts], [y, counts]),
        "alltoallw": ([both, (counts, places), types], [y, (counts, places), types]),
    }  # fmt: skip
    for name, arguments in calls.items():
        getattr(grid, f"Neighbor_{name}")(*arguments)
        take(y)
        getattr(grid, f"Ineighbor_{name}")(*arguments).Wait()
        take(y)
    take(grid.neighbor_allgather(comm.rank), grid.neighbor_alltoall([comm.rank, -comm.rank]))
    grid.Sub([True]).Free()
    grid.Free()


def make_communicators(comm: Any, take: Take) -> None:
    """Make communicators in the ways that other functions do not."""
    rank, size = comm.rank, comm.size
    group = comm.Get_group()
    made = [
        comm.Split_type(MPI.COMM_TYPE_SHARED), comm.Dup(), comm.Create(group),
        comm.Create_graph([2 * (node + 1) for node in range(size)],
                          [(node + step) % size for node in range(size) for step in (1, -1)]),
        comm.Create_dist_graph_adjacent([(rank - 1) % size], [(rank + 1) % size]),
    ]  # fmt: skip
    take([new.allreduce(rank) for new in made])
    for new in made:
        new.Free()
    group.Free()
