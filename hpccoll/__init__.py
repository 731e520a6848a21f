"""Collective communication, written once as a plan: proven, replayed, run over MPI and measured beside its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator as Communicator
    from hpccoll.runtime.arrays import Reduction as Reduction
    from hpccoll.runtime.arrays import premul_sum as premul_sum

__version__ = "0.1.0"
__all__ = ["Communicator", "Reduction", "premul_sum"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: plans are proven without MPI."""
    if name == "Communicator":
        from hpccoll.runtime import job

        job.load_mpi()  # so that a missing MPI or a foreign launcher is an error with a remedy
        from hpccoll.communicator import Communicator

        return Communicator
    if name in ("Reduction", "premul_sum"):
        from hpccoll.runtime.arrays import reductions

        return getattr(reductions, name)
    raise AttributeError(f"module 'hpccoll' has no attribute {name!r}")
