"""The classic examples of collective communication, each run on MPI ranks by `hpccoll demo`.

Start with `examples.py`, which reads the list in examples.toml; `in_hpccoll.py`, `in_mpi4py.py` and `in_torch.py` hold
the same calls in three libraries. The package re-exports nothing, because an example imports the library that it shows.
"""
