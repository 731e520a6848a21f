"""Makes calls of mpi4py on buffers and on objects, and prints a digest of the results of this rank."""

from __future__ import annotations

import hashlib
import os
import pickle
from typing import Any

import numpy as np
from mpi4py import MPI
from profiled_forms import call_every_form  # type: ignore[import-not-found]

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
rng = np.random.default_rng(rank)
digest = hashlib.sha256()


def take(*results: Any) -> None:
    for result in results:
        digest.update(result.tobytes() if isinstance(result, np.ndarray) else pickle.dumps(result))


def call_collectives(x: np.ndarray, y: np.ndarray, blocks: np.ndarray) -> None:
    comm.Allreduce(x, y)
    take(y)
    comm.Allreduce(MPI.IN_PLACE, y)
    take(y)
    comm.Reduce(x, y if rank == 0 else None, MPI.SUM, 0)
    comm.Bcast([x, MPI.DOUBLE], root=size - 1)
    take(x, y)
    comm.Allgather(x, blocks)
    take(blocks)
    comm.Gather(x, blocks if rank == 0 else None)
    comm.Scatter(blocks if rank == 0 else None, y)
    take(y)
    comm.Alltoall(x, y)
    take(y)
    counts = np.arange(size) + 1
    gathered = np.empty(counts.sum())
    comm.Allgatherv(x[: rank + 1], [gathered, counts, MPI.DOUBLE])
    take(gathered)
    comm.Reduce_scatter_block(x, y[: len(x) // size])
    comm.Scan(x, y)
    take(y)
    comm.Barrier()
    request = comm.Iallreduce(x, y)
    request.Wait()
    take(y)
    barrier = comm.Ibarrier()
    while not barrier.Test():
        pass


def call_messages(x: np.ndarray, y: np.ndarray) -> None:
    request = comm.Isend(x, right, tag=3)
    comm.Recv(y, left, tag=3)
    request.Wait()
    take(y)
    MPI.Request.Waitall([comm.Irecv(y, left), comm.Isend([x, len(x), MPI.DOUBLE], right)])
    take(y)
    comm.Sendrecv(x, right, 1, y, left, 1)
    take(y)
    prepared = [comm.Send_init(x, right, 9), comm.Recv_init(y, left, 9)]
    for _ in range(2):
        MPI.Prequest.Startall(prepared)
        MPI.Request.Waitall(prepared)
        take(y)
    for each in prepared:
        each.Free()
    status = MPI.Status()
    request = comm.Irecv(y, MPI.ANY_SOURCE, 8)
    comm.Send(x, right, 8)
    request.Wait(status)
    take(y, status.source)


def call_objects(x: np.ndarray) -> None:
    everything = list(range(size))
    take(comm.allreduce(float(x[0])), comm.bcast({"rank": rank}, 0), comm.allgather(rank), comm.gather((rank,), 0))
    take(comm.scatter(everything if rank == 0 else None), comm.alltoall(everything), comm.scan(rank))
    request = comm.isend([rank], right, 5)
    take(comm.recv(source=left, tag=5), comm.sendrecv(rank, right, 0, None, left, 0))
    request.wait()


def call_groups(x: np.ndarray, y: np.ndarray) -> None:
    half = comm.Split(rank % 2, rank)
    half.Allreduce(x, y)
    take(y, half.size)
    half.Free()
    grid = comm.Create_cart([size])
    take(grid.coords, isinstance(grid, MPI.Cartcomm), pickle.loads(pickle.dumps(comm)) == comm)
    grid.Free()


for _ in range(2):
    vector = rng.standard_normal(12 * size)
    call_collectives(vector, np.empty_like(vector), np.empty(size * len(vector)))
    call_messages(vector, np.empty_like(vector))
    call_objects(vector)
    call_groups(vector, np.empty_like(vector))
    call_every_form(comm, vector, take)
os.write(1, f"digest {rank} {digest.hexdigest()}\n".encode())  # at once, so that lines of ranks do not mix
