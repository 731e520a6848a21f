"""Every error that hpccoll raises on purpose, with the exit status that the command line gives it.

A message says what happened, the values involved, the rank and step where there is one, and the remedy.
"""

from __future__ import annotations


class HpccollError(Exception):
    """Base of all errors raised on purpose; `exit_status` is what the command line returns."""

    exit_status = 1


class UsageError(HpccollError, ValueError):
    """The caller asked for something that does not exist or does not fit together."""

    exit_status = 2


class UnknownNameError(UsageError):
    """A name that is not registered; the message lists the valid ones."""

    def __init__(self, what: str, name: str, valid: list[str]) -> None:
        super().__init__(f"unknown {what} {name!r}; choose one of: {', '.join(sorted(valid))}")


class BufferError(UsageError):
    """A buffer that cannot take part as it is: layout, dtype, device, size or aliasing."""


class ReductionError(UsageError):
    """A reduction and a dtype that do not go together."""


class UnavailableError(HpccollError):
    """Something that was asked for is not here: a GPU, NCCL, MPI, torch, SLURM."""

    exit_status = 3


class CommunicationError(HpccollError):
    """The communication failed: a peer died, hung or disagreed."""

    exit_status = 4


class MismatchError(CommunicationError):
    """Ranks called the same collective with different arguments."""


class LauncherError(CommunicationError):
    """The launcher and the MPI library do not belong together (N jobs of one rank each)."""


class PlanError(HpccollError):
    """A plan does not do what its operation promises; the message names round, rank and chunk."""


class DeadlockError(PlanError):
    """A free program cannot finish; `stuck` names the ranks and what each waits for."""

    def __init__(self, message: str, stuck: dict[int, str]) -> None:
        super().__init__(message)
        self.stuck = stuck


class WrongResultError(HpccollError):
    """A result that was validated and found wrong."""
