"""Collectives on symmetric CUDA memory: CUDA IPC, stream fences, fused kernels, and the probe of a CUDA-aware MPI.

Start with executable.py. device.py shares memory and orders streams; fuse.py and kernels.py make the kernels.
"""
