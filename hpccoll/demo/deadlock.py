"""Two ranks that both send first: what the checker says of it, and what happens to who tries it nevertheless."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.errors import CommunicationError, DeadlockError
from hpccoll.plan.proof import Action, RecvAction, SendAction, check_program

if TYPE_CHECKING:
    from mpi4py import MPI

LOOK_S = 0.001  # between two looks at a request
STEPS = ("send x to rank {0}", "receive y from rank {0}")


def make_program() -> list[list[Action]]:
    """Return the example as a free program: x is chunk 0, y is chunk 1; both ranks send, then receive."""
    return [[SendAction(1, 0), RecvAction(1, 1)], [SendAction(0, 0), RecvAction(0, 1)]]


def explain_deadlock() -> str:
    """Return what the checker says of the program, before anything runs."""
    try:
        check_program(make_program())
    except DeadlockError as error:
        return str(error)
    return "the checker finds no deadlock"


def force_deadlock(world: MPI.Intracomm, x: Any, limit_s: float) -> None:
    """Run the program for real, by synchronous sends, and give up after `limit_s` seconds.

    Raises:
        CommunicationError: always, since it cannot end; names each rank and the step at which it was found.
    """
    news = world.Dup()  # its own message space: the other's is stuck
    peer, y = 1 - world.rank, np.empty_like(x)
    step = 0
    for start in (world.Issend, world.Irecv):
        if not _ended(start(x if step == 0 else y, peer), limit_s):
            break
        step += 1
    mine, steps = np.array([step], np.int64), np.full(2, -1, np.int64)
    _ended(news.Iallgather(mine, steps), limit_s)  # a rank that did end is not waited for for ever
    if (steps == len(STEPS)).all():
        return
    found = "; ".join(_found(rank, int(at)) for rank, at in enumerate(steps))
    raise CommunicationError(
        f"nothing has moved for {limit_s:g} s: {found}. Each waits for the other to receive; "
        "let one of them receive first, or use isend and irecv"
    )


def _found(rank: int, step: int) -> str:
    if 0 <= step < len(STEPS):
        return f"rank {rank} is still at step {step} ({STEPS[step].format(1 - rank)})"
    return f"rank {rank} has ended" if step == len(STEPS) else f"rank {rank} does not answer"


def _ended(request: Any, limit_s: float) -> bool:
    """Whether a request ends within `limit_s`."""
    end = time.monotonic() + limit_s
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_S)
    return True
