"""How fast a network allows a collective to be, and plans that are as fast.

`network` describes ranks, switches and links. `optimum` finds the tightest cut. Start with `compute_optimum`.
"""

from hpccoll.synthesis.machine_network import find_machine_optimum, make_machine_network
from hpccoll.synthesis.network import Network, NetworkBuilder, NetworkError
from hpccoll.synthesis.optimum import Optimum, compute_optimum

__all__ = [
    "Network", "NetworkBuilder", "NetworkError", "Optimum", "compute_optimum", "find_machine_optimum",
    "make_machine_network",
]  # fmt: skip
