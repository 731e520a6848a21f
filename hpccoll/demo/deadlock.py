"""The example in which both of two ranks send first: a proof of the deadlock, and a run with a time limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.errors import CommunicationError, DeadlockError
from hpccoll.plan.proof import RecvAction, SendAction, check_program

if TYPE_CHECKING:
    from mpi4py import MPI

POLL_S = 0.001
STEPS = ("send x to rank {0}", "receive y from rank {0}")


def explain_deadlock() -> str:
    """Return the plan checker's message on the deadlock of two ranks that both send first. Sends no MPI message."""
    # Each rank sends x (chunk 0) to the other rank, then receives y (chunk 1) from it.
    try:
        check_program([[SendAction(1, 0), RecvAction(1, 1)], [SendAction(0, 0), RecvAction(0, 1)]])
    except DeadlockError as error:
        return str(error)
    return "the checker finds no deadlock"


def force_deadlock(world: MPI.Intracomm, x: Any, limit_s: float) -> None:
    """Cause a deadlock between the two ranks of `world`, which both send before they receive. Collective.

    Args:
        world: a communicator of two ranks.
        x: the array to send, synchronously (Issend).
        limit_s: the seconds for which a rank waits for a step to complete.

    Raises:
        CommunicationError: the ranks are deadlocked; the message names each rank and its step.
    """
    progress = world.Dup()  # a second communicator, since the first one has pending messages
    peer, y = 1 - world.rank, np.empty_like(x)
    step = 0
    for start in (world.Issend, world.Irecv):
        if not _wait(start(x if step == 0 else y, peer), limit_s):
            break
        step += 1
    own_step, steps = np.array([step], np.int64), np.full(2, -1, np.int64)
    _wait(progress.Iallgather(own_step, steps), limit_s)  # with a limit: the other rank may have ended
    if (steps == len(STEPS)).all():
        return
    states = "; ".join(_format_state(rank, int(reached)) for rank, reached in enumerate(steps))
    raise CommunicationError(
        f"nothing has moved for {limit_s:g} s: {states}. Each waits for the other to receive; "
        "let one of them receive first, or use isend and irecv"
    )


def _format_state(rank: int, step: int) -> str:
    """Return in words which of the two STEPS a rank has reached; `step` is -1 if the rank did not answer."""
    if 0 <= step < len(STEPS):
        return f"rank {rank} is still at step {step} ({STEPS[step].format(1 - rank)})"
    return f"rank {rank} has ended" if step == len(STEPS) else f"rank {rank} does not answer"


def _wait(request: Any, limit_s: float) -> bool:
    """Wait for an MPI request for at most `limit_s` seconds; return whether it completed."""
    end = time.monotonic() + limit_s
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
