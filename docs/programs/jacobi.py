"""Solves Laplace's equation on a square by Jacobi's method: `mpirun -n 4 python jacobi.py [CELLS] [ITERATIONS]`.

Each rank holds a block of rows. In each iteration it exchanges a row with each neighbor, and all ranks agree on the
largest change by `Allreduce`.
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
cells = int(sys.argv[1]) if len(sys.argv) > 1 else 64
most_iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 200

ring = comm.Create_cart([comm.size], periods=[False])
above, below = ring.Shift(0, 1)
rows = cells // ring.size + (ring.rank < cells % ring.size)
old = np.zeros((rows + 2, cells + 2))  # with one row and column around the block
if below == MPI.PROC_NULL:
    old[-1] = 1.0  # the lower edge of the square is warm
new = old.copy()

change, iteration = np.ones(1), 0
while iteration < most_iterations and change[0] > 1e-4:
    ring.Sendrecv(old[1], dest=above, recvbuf=old[-1] if below != MPI.PROC_NULL else None, source=below)
    ring.Sendrecv(old[-2], dest=below, recvbuf=old[0] if above != MPI.PROC_NULL else None, source=above)
    new[1:-1, 1:-1] = (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]) / 4
    own = np.array([np.abs(new[1:-1] - old[1:-1]).max()])
    ring.Allreduce(own, change, op=MPI.MAX)
    old, new = new, old
    iteration += 1

mean = ring.allreduce(old[1:-1, 1:-1].sum()) / cells**2
blocks = ring.gather(old[1:-1, 1:-1], root=0)
if blocks is not None:  # on the root
    center = np.concatenate(blocks)[cells // 2, cells // 2]
    print(f"{iteration} iterations: last change {change[0]:.6f}, mean {mean:.6f}, center {center:.6f}")
