"""Computes the inner products of a vector with a basis: `mpirun -n 4 python many_dots.py [single|joined]`.

Each rank holds a part of all vectors. With `single`, every inner product is reduced by a call of its own; with
`joined`, one call reduces all of them.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
length, vectors, steps = 20000, 50, 40
rng = np.random.default_rng(comm.rank)
basis = rng.standard_normal((vectors, length // comm.size))
x = rng.standard_normal(length // comm.size)
comm.Barrier()
begin = time.perf_counter()
for _ in range(steps):
    products = basis @ x
    if "joined" in sys.argv[1:]:
        comm.Allreduce(MPI.IN_PLACE, products)
    else:
        for index in range(vectors):
            products[index] = comm.allreduce(products[index])
    x -= 1e-6 * (products @ basis)
if comm.rank == 0:
    print(f"norm {np.linalg.norm(x):.6f}, {time.perf_counter() - begin:.3f} s")
