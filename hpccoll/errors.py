"""The exceptions that hpccoll raises; a command of hpccoll that fails ends with the exception's `exit_status`."""

from __future__ import annotations

from typing import Final

DEBUG_HINT: Final = "run with HPCCOLL_DEBUG=1 to find the first call in which ranks differ"


class HpccollError(Exception):
    """Base class of all exceptions of hpccoll."""

    exit_status = 1


class UsageError(HpccollError, ValueError):
    """An argument is unknown, out of range, or contradicts another argument."""

    exit_status = 2


class UnknownNameError(UsageError):
    """The name of an algorithm, dtype or similar is unknown; the message lists similar names, then all valid names."""

    def __init__(self, what: str, name: str, valid: list[str], hint: str = "") -> None:
        """Make the message; `what` is the kind of the name, such as `dtype`, and `hint` a remedy for this name."""
        similar = find_similar_names(name, valid)
        question = f"did you mean {' or '.join(similar)}? " if similar else ""
        hint = question + hint
        super().__init__(f"unknown {what} {name!r}; {hint}choose one of: {', '.join(sorted(valid))}")


def find_similar_names(name: str, valid: list[str]) -> list[str]:
    """Return at most two of the `valid` names that resemble `name`, to be suggested in an error message."""
    from difflib import get_close_matches

    plain: dict[str, str] = {}
    for known in valid:
        plain.setdefault(_remove_separators(known), known)
    close = [plain[match] for match in get_close_matches(_remove_separators(name), list(plain), n=2)]
    exact = plain.get(_remove_separators(name))
    return close if exact is None else [exact]


def _remove_separators(name: str) -> str:
    """Return a name in lower case without `-`, `_`, `.` and blanks."""
    return "".join(letter for letter in name.lower() if letter not in "-_. ")


class BufferError(UsageError):
    """An array's layout, dtype, device, size or overlap with another array is not supported."""


class ReductionError(UsageError):
    """A reduction is not defined for the dtype of the buffer."""


class RecordingError(UsageError):
    """A file is no recorder file of hpccoll, is truncated, or has another version."""


class UnavailableError(HpccollError):
    """A requested resource is missing, such as a GPU, shared memory, NCCL, MPI, torch or SLURM."""

    exit_status = 3


class CommunicationError(HpccollError):
    """Communication failed, for example because another rank died, hung, or called a different collective."""

    exit_status = 4


class MismatchError(CommunicationError):
    """Ranks called different collectives, or the same collective with different arguments."""


class RankLostError(CommunicationError):
    """The process of another rank has ended, or was counted as dead because it did not answer.

    `ranks` are the dead ranks of the communicator, and `hosts` their hosts. `operation` names the first call that
    raises the error; later calls on the communicator raise the error with an empty `operation`.
    """

    def __init__(self, rank: int, ranks: tuple[int, ...], hosts: tuple[str, ...], operation: str) -> None:
        self.ranks, self.hosts, self.operation = ranks, hosts, operation
        dead = " and ".join(f"rank {rank} (on {host})" for rank, host in zip(ranks, hosts, strict=True))
        doing = f" in {operation}" if operation else ""
        super().__init__(
            f"rank {rank}{doing}: {dead} of this communicator {'has' if len(ranks) == 1 else 'have'} ended; call its "
            "`shrink` on all other ranks, and go on with the communicator that it returns"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _remake_rank_lost_error, (str(self), self.ranks, self.hosts, self.operation)


def _remake_rank_lost_error(
    message: str, ranks: tuple[int, ...], hosts: tuple[str, ...], operation: str
) -> RankLostError:
    """Return a RankLostError with these attributes; pickle calls this function to restore a RankLostError."""
    error = RankLostError.__new__(RankLostError, message)
    error.args, error.ranks, error.hosts, error.operation = (message,), ranks, hosts, operation
    return error


class WaitTimeoutError(CommunicationError):
    """A wait for other ranks took longer than allowed; the operation that waits may still be completed by MPI."""


class LauncherError(CommunicationError):
    """The launcher (such as mpirun) belongs to another MPI library than the one that Python loads."""


class PlanError(HpccollError):
    """A plan (the steps of a collective) is wrong; the message names round, rank and chunk."""


class DeadlockError(PlanError):
    """A program of sends and receives deadlocks; `stuck` maps each blocked rank to a description of its action."""

    def __init__(self, message: str, stuck: dict[int, str]) -> None:
        super().__init__(message)
        self.stuck = stuck


class WrongResultError(HpccollError):
    """The result of a collective differs from the expected result."""
