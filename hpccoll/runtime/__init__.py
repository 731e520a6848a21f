"""Runs plans on NumPy, CuPy and torch arrays, over MPI and in memory that ranks share.

Start with engine.py, which selects an algorithm and lowers its plan to instructions for this rank (lowering/). Four
packages run plans: messages/ by messages, shared_memory/ in shared memory, two_level/ with both, and cuda/ in device
memory. messages/mpi_collectives.py runs the MPI library's own collectives, which have no plan. arrays/ is one interface
to the array libraries. node_memory/ provides the memory that a node's ranks share, recorder/ records calls, and
failure_detection/ ends jobs that cannot finish. The packages plan, algorithms and selection do not import mpi4py, CuPy
or torch. The package hpccoll.runtime re-exports nothing, because most of its modules load MPI.
"""
