"""Parameters, memory, FLOPs, traffic and time of training a model on a mesh of ranks, by formulas.

Start with `training_setup.py`, the description of a training step. `transformer_parts` and `perceptron_parts` have
formulas for the parts of a model, such as a layer. `parameters`, `memory`, `flops`, `communication` and `overlap` have
formulas for a rank. The docstrings derive the formulas and cite their sources. `estimate.py` combines these quantities
for a machine model, and `mesh_search.py` ranks meshes.
"""

from hpccoll.sizing.estimate import Estimate, make_estimate
from hpccoll.sizing.mesh_search import MeshSearch, search_meshes
from hpccoll.sizing.training_setup import Precision, TrainingSetup
from hpccoll.sizing.transformer_shape import TransformerShape, list_presets, load_preset

__all__ = [
    "Estimate", "MeshSearch", "Precision", "TrainingSetup", "TransformerShape", "list_presets", "load_preset",
    "make_estimate", "search_meshes",
]  # fmt: skip
