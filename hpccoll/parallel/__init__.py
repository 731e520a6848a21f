"""Data, tensor and pipeline parallelism over `Communicator`, in torch.

Start with mesh.py, which arranges the ranks; axis_group.py communicates along one axis of the mesh. The other modules
import torch, so they are imported where they are used.
"""

from hpccoll.parallel.mesh import Mesh

__all__ = ["Mesh"]
