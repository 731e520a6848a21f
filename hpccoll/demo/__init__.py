"""The classic examples of collective communication, each run on MPI ranks by `hpccoll demo`.

Start with `examples.py`, the list; `in_hpccoll.py`, `in_mpi4py.py` and `in_torch.py` hold the same calls in three
libraries.
"""
