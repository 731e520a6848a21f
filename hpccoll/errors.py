"""The exceptions that hpccoll raises; `exit_status` is the exit status of a command that raises it."""

from __future__ import annotations


class HpccollError(Exception):
    """Base class of all exceptions of hpccoll."""

    exit_status = 1


class UsageError(HpccollError, ValueError):
    """An argument that does not exist, is out of range, or contradicts another."""

    exit_status = 2


class UnknownNameError(UsageError):
    """A name that is not registered; the message lists the valid names."""

    def __init__(self, what: str, name: str, valid: list[str]) -> None:
        super().__init__(f"unknown {what} {name!r}; choose one of: {', '.join(sorted(valid))}")


class BufferError(UsageError):
    """A buffer whose layout, dtype, device, size or overlap with another buffer is not supported."""


class ReductionError(UsageError):
    """A reduction that the dtype does not support."""


class UnavailableError(HpccollError):
    """A requested resource is missing: a GPU, NCCL, MPI, torch or SLURM."""

    exit_status = 3


class CommunicationError(HpccollError):
    """Communication failed: a peer died, hung, or called a different collective."""

    exit_status = 4


class MismatchError(CommunicationError):
    """Ranks called the same collective with different arguments."""


class LauncherError(CommunicationError):
    """The launcher (such as mpirun) belongs to another MPI library, so that it started N jobs of one rank each."""


class PlanError(HpccollError):
    """A plan is wrong; the message names round, rank and chunk."""


class DeadlockError(PlanError):
    """A free program (lists of sends and receives) deadlocks; `stuck` maps blocked ranks to their current actions."""

    def __init__(self, message: str, stuck: dict[int, str]) -> None:
        super().__init__(message)
        self.stuck = stuck


class WrongResultError(HpccollError):
    """A result that differs from the expected one."""
