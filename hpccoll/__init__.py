"""Collective communication whose algorithms are written as plans, which are verified, simulated, run and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpccoll.errors import (
    BufferError,
    CommunicationError,
    DeadlockError,
    HpccollError,
    LauncherError,
    MismatchError,
    PlanError,
    RankLostError,
    RecordingError,
    ReductionError,
    UnavailableError,
    UnknownNameError,
    UsageError,
    WaitTimeoutError,
    WrongResultError,
)

if TYPE_CHECKING:
    from hpccoll.arrays import Reduction as Reduction
    from hpccoll.arrays import premul_sum as premul_sum
    from hpccoll.communicator import Communicator as Communicator
    from hpccoll.communicator import survivors as survivors
    from hpccoll.runtime.messages.point_to_point import ANY_SOURCE as ANY_SOURCE
    from hpccoll.runtime.messages.point_to_point import PROC_NULL as PROC_NULL

__version__ = "0.1.0"
__all__ = [
    "ANY_SOURCE", "PROC_NULL", "BufferError", "CommunicationError", "Communicator", "DeadlockError", "HpccollError",
    "LauncherError", "MismatchError", "PlanError", "RankLostError", "RecordingError", "Reduction", "ReductionError",
    "UnavailableError", "UnknownNameError", "UsageError", "WaitTimeoutError", "WrongResultError", "premul_sum",
    "survivors",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use; also initialize MPI, except for `Reduction` and `premul_sum`."""
    if name in ("Communicator", "survivors"):
        from hpccoll.runtime import job

        job.load_mpi()  # raises an error with a remedy if MPI is missing or the launcher is another MPI library's
        from hpccoll import communicator

        return getattr(communicator, name)
    if name in ("Reduction", "premul_sum"):
        from hpccoll.arrays import reductions

        return getattr(reductions, name)
    if name in ("ANY_SOURCE", "PROC_NULL"):  # mpi4py's constants, which differ between MPI libraries
        from hpccoll.runtime import job

        return getattr(job.load_mpi(), name)
    raise AttributeError(f"module 'hpccoll' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are imported at their first use."""
    return sorted([*__all__, "__version__"])
