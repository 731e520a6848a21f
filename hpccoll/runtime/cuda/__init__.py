"""Collectives on symmetric CUDA memory: CUDA IPC, stream fences, fused kernels, and the probe of a CUDA-aware MPI.

Start reading in executable.py. device.py shares device memory between ranks and orders their streams. fuse.py and
kernels.py generate the kernels.
"""
