"""Starts MPI, by hpccoll or without it, in a process whose MPICH sends messages of more than 1,024 bytes to SLURM.

MPICH publishes memory after the address of a rank, with zeros compressed. This program fills the heap with bytes that
are not zero, and frees every second block, so that the address is written between blocks that remain.
"""

import ctypes
import sys

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
sizes = 6 * [*range(100, 6000, 16)]
blocks = [libc.malloc(size) for size in sizes]
for block, size in zip(blocks, sizes, strict=True):
    ctypes.memset(block, 0xA5, size)
for block in blocks[::2]:
    libc.free(block)

if sys.argv[1] == "hpccoll":
    from hpccoll.runtime import job

    comm = job.get_world()
else:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank)
if comm.rank == 0:
    print(f"{comm.size} ranks, sum {total}")
