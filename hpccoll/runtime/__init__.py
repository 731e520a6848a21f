"""Runs plans on MPI; the only room that imports mpi4py, CuPy or torch."""
