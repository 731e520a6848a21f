"""Runs plans on NumPy, CuPy and torch arrays, over MPI and in memory that ranks share.

Start with engine.py: it selects an algorithm, lowers its plan for this rank (lowering/), binds the program to memory
(address_space.py) and runs one of five kinds of executable: messages/, shared_memory/, hierarchical/ (messages and
shared memory), cuda/, or the MPI library's own collective (messages/mpi_collectives.py). arrays/ is one interface to
the array libraries; node_memory/ is the memory that a node's ranks share. No lower package imports mpi4py, CuPy or
torch.
The package re-exports nothing, because most of its modules load MPI.
"""
