"""Runs plans on NumPy, CuPy and torch arrays, over MPI and in memory that ranks share.

Start with engine.py, which selects an algorithm and lowers its plan to instructions for this rank (hpccoll/lowering).
Four packages run plans: messages/ by messages, shared_memory/ in shared memory, two_level/ by messages and in shared
memory, and cuda/ in device memory. messages/mpi_collectives.py runs the MPI library's own collectives, which have no
plan. node_memory/ provides the memory that a node's ranks share, and recorder/ records calls. The package
hpccoll.runtime re-exports nothing, because most of its modules load MPI.
"""
