"""Data, tensor and pipeline parallelism over `Communicator`; start with mesh.py, which arranges the ranks."""
