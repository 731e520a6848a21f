"""Averages neighbouring cells of a grid: `mpirun -n 4 python stencil.py [uneven|even]`.

Each rank holds some rows and sends its first and last row to its neighbours. In each step, an all-reduce finds the
largest change of a cell. With `uneven`, the last of four ranks holds three times as many rows as each other rank.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
rows, columns, steps = 400, 2000, 60
shares = [rows // size] * size
if "even" not in sys.argv[1:]:
    taken = shares[0] // 3
    shares = [share - taken for share in shares[:-1]] + [shares[-1] + taken * (size - 1)]

grid = np.zeros((shares[rank] + 2, columns))
grid[:, 0] = 1.0
up, down = (rank - 1 if rank else MPI.PROC_NULL), (rank + 1 if rank < size - 1 else MPI.PROC_NULL)
change = 0.0
comm.Barrier()
begin = time.perf_counter()
for _ in range(steps):
    comm.Sendrecv(grid[1], up, 0, grid[-1], down, 0)
    comm.Sendrecv(grid[-2], down, 0, grid[0], up, 0)
    new = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
    change = comm.allreduce(np.abs(new - grid[1:-1, 1:-1]).max(), op=MPI.MAX)
    grid[1:-1, 1:-1] = new
if rank == 0:
    print(f"change {change:.3e}, {time.perf_counter() - begin:.3f} s")
