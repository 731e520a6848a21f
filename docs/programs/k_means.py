"""Finds clusters of points by Lloyd's k-means: `mpirun -n 4 python k_means.py [POINTS] [CLUSTERS]`.

The root scatters the points. In each iteration, every rank adds up its points per cluster, and one `allreduce` of an
array adds up the sums of all ranks.
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
points = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
clusters = int(sys.argv[2]) if len(sys.argv) > 2 else 5
dims = 16

parts = None
if comm.rank == 0:
    generator = np.random.default_rng(1)
    middles = generator.normal(scale=4.0, size=(clusters, dims))
    everything = middles[generator.integers(clusters, size=points)] + generator.normal(size=(points, dims))
    parts = np.array_split(everything, comm.size)
own = comm.scatter(parts, root=0)
centers = comm.bcast(None if parts is None else parts[0][:clusters].copy(), root=0)

moved = np.inf
while True:
    distances = ((own[:, None] - centers) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    if moved < 1e-9:
        break
    totals = np.zeros((clusters, dims + 1))  # the sum of the points of each cluster, and their number
    np.add.at(totals[:, :dims], nearest, own)
    np.add.at(totals[:, dims], nearest, 1)
    totals = comm.allreduce(totals)
    new_centers = totals[:, :dims] / np.maximum(totals[:, dims:], 1)
    moved = np.abs(new_centers - centers).max()
    centers = new_centers

inertia = comm.reduce(distances.min(axis=1).sum(), op=MPI.SUM, root=0)
sizes = comm.allgather(np.bincount(nearest, minlength=clusters))
if comm.rank == 0:
    print(f"{points} points: inertia {inertia:.4f}, sizes {sorted(np.sum(sizes, axis=0).tolist())}, moved {moved:.1e}")
