"""Data, tensor and pipeline parallelism over `Communicator`, in torch.

Start with mesh.py, which arranges the ranks; axis_group.py communicates along one axis of the mesh. All other modules
import torch, so the package imports them only where they are used.
"""

from hpccoll.parallel.mesh import Mesh

__all__ = ["Mesh"]
