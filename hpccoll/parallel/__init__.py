"""Ranks as a mesh, and what each axis does: data, tensor and pipeline parallelism over `Communicator`."""
