"""Solves linear equations by conjugate gradients: `mpirun -n 4 python conjugate_gradients.py [UNKNOWNS]`.

The matrix is symmetric and positive definite. Each rank holds a block of its rows. Every iteration takes an
`Allgatherv` of a vector and two `allreduce` of numbers.
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
unknowns = int(sys.argv[1]) if len(sys.argv) > 1 else 400

counts = [unknowns // comm.size + (rank < unknowns % comm.size) for rank in range(comm.size)]
first = sum(counts[: comm.rank])
own = slice(first, first + counts[comm.rank])
places = np.arange(unknowns)
matrix = np.exp(-np.abs(places[own, None] - places) / 4.0)  # the rows of this rank
matrix[np.arange(counts[comm.rank]), places[own]] += 1.0
right = comm.bcast(np.cos(places / 7.0) if comm.rank == 0 else None, root=0)

x = np.zeros(counts[comm.rank])
residual = right[own].copy()
direction = residual.copy()
everywhere = np.empty(unknowns)
square, iteration = comm.allreduce(residual @ residual), 0
while square > 1e-20 and iteration < unknowns:
    comm.Allgatherv(direction, [everywhere, counts])
    image = matrix @ everywhere
    step = square / comm.allreduce(direction @ image)
    x += step * direction
    residual -= step * image
    new_square = comm.allreduce(residual @ residual)
    direction = residual + new_square / square * direction
    square, iteration = new_square, iteration + 1

comm.Allgatherv(x, [everywhere, counts])
error = comm.allreduce(np.abs(matrix @ everywhere - right[own]).max(), op=MPI.MAX)
if comm.rank == 0:
    print(f"solved: {error < 1e-8}, sum {everywhere.sum():.8f}, largest {np.abs(everywhere).max():.8f}")
