"""A random program of which one rank is interrupted in each round; run by random_interruptions.py on several ranks.

python interrupted_program.py SEED ROUNDS: in each round the ranks make a communicator and up to 600 random calls, and
a signal handler raises in one rank at a random instant of a call. The round ends when a call is refused. Every rank
checks every result, and that no call takes longer than LIMIT_S.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import hpccoll
from hpccoll.errors import CommunicationError

LIMIT_S = 2.0
STEPS = 600
ALGORITHMS = ("ring", "shared_two_shot", "shared_one_shot", "mpi", "auto")
SIZES = (3, 1000, 30_000)


class Interrupted(Exception):
    """The exception of the handler of SIGALRM, as of a time-out."""


class Interrupter:
    """Raises in this rank once, by SIGALRM or SIGINT, at the first instant inside of a call after a time."""

    def __init__(self) -> None:
        self.is_inside = self.is_armed = False
        self.at = 0.0
        signal.signal(signal.SIGALRM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def arm(self, after_s: float, by_sigint: bool) -> None:
        """Raise after `after_s` seconds: KeyboardInterrupt by a signal of a thread, or Interrupted by a timer."""
        self.is_armed = True
        if by_sigint:
            thread = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
            thread.daemon = True
            thread.start()
        else:
            signal.setitimer(signal.ITIMER_REAL, after_s)

    def _handle(self, number: int, _: object) -> None:
        """Raise in a call; try again soon elsewhere."""
        if not self.is_armed:
            return
        if not self.is_inside:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            return
        self.is_armed, self.at = False, time.monotonic()
        raise KeyboardInterrupt if number == signal.SIGINT else Interrupted


def say(*words: object) -> None:
    """Print a line by one write, so that lines of two ranks do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Step:
    """One random call, the same on all ranks, and its expected result."""

    def __init__(self, rng: random.Random, comm: Any, arrays: dict[int, Any], step: int) -> None:
        self.comm, self.step = comm, step
        self.kind = rng.choice(("all_reduce", "all_reduce", "async", "broadcast", "sendrecv", "pair", "barrier"))
        self.algorithm, count = rng.choice(ALGORITHMS), rng.choice(SIZES)
        self.x = arrays[count] if rng.random() < 0.7 else np.empty(count)
        self.out = np.empty(count)
        self.work: Any = None

    def begin(self) -> None:
        """Fill the arrays, and make the call."""
        comm, factor = self.comm, self.step % 9 + 1
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.x.fill((comm.rank + 1) * factor)
        if self.kind == "all_reduce":
            comm.all_reduce(self.x, algorithm=self.algorithm)
        elif self.kind == "async":
            self.work = comm.all_reduce(self.x, algorithm=self.algorithm, async_op=True)
        elif self.kind == "broadcast":
            comm.broadcast(self.x, root=self.step % comm.size)
        elif self.kind == "sendrecv":
            comm.sendrecv(self.x, right, left, out=self.out)
        elif self.kind == "pair" and comm.rank == 0:
            comm.send(self.x, 1)
        elif self.kind == "pair" and comm.rank == 1:
            comm.recv(self.x, 0)
        elif self.kind == "barrier":
            comm.barrier()

    def finish(self) -> None:
        """Wait for an asynchronous call, whose handle may be lost."""
        if self.kind == "async":
            self.comm._engine.finish() if self.work is None else self.work.wait()

    def check(self) -> None:
        """Raise AssertionError if the result is wrong."""
        comm, factor = self.comm, self.step % 9 + 1
        result, expected = self.x, comm.rank + 1
        if self.kind in ("all_reduce", "async"):
            expected = sum(range(1, comm.size + 1))
        elif self.kind == "broadcast":
            expected = self.step % comm.size + 1
        elif self.kind == "sendrecv":
            result, expected = self.out, (comm.rank - 1) % comm.size + 1
        elif self.kind == "pair" and comm.rank == 1:
            expected = 1
        wrong = result[result != expected * factor]
        assert not len(wrong), f"wrong: step {self.step}, {self.kind} by {self.algorithm}: {wrong[:3]}"


def run_step(step: Step, interrupter: Interrupter) -> str:
    """Make a call, again where an interrupted call had not begun; return "refused" if the communicator is unusable."""
    state = step.comm._state
    before = state.count + state.messages
    while True:
        began = time.monotonic()
        faulthandler.dump_traceback_later(LIMIT_S * 0.75)  # shows where a rank hangs
        try:
            interrupter.is_inside = True
            if state.count + state.messages == before:
                step.begin()
            step.finish()
            interrupter.is_inside = False
        except (Interrupted, KeyboardInterrupt):
            interrupter.is_inside = False
            if state.is_unusable:  # the same call again must be refused
                before = state.count + state.messages
            continue
        except CommunicationError as error:
            interrupter.is_inside = False
            if "unusable" not in str(error):
                raise
            return "refused"
        finally:
            taken = time.monotonic() - began
            assert taken < LIMIT_S, f"slow: {step.kind} by {step.algorithm} took {taken:.1f} s: {sys.exception()!r}"
        return "finished"


def run_round(number: int, seed: int, arrays: dict[int, Any], interrupter: Interrupter) -> str:
    """Run one round on a new communicator; return "refused" or "finished"."""
    rng = random.Random(seed)
    outcome = "finished"
    with hpccoll.Communicator() as comm:
        guilty, after_s, by_sigint = rng.randrange(comm.size), rng.uniform(1e-5, 0.03), rng.random() < 0.5
        comm.barrier()
        if comm.rank == guilty:
            say("armed", number)
            interrupter.arm(after_s, by_sigint)
        for step in range(STEPS):
            call = Step(rng, comm, arrays, step)
            outcome = run_step(call, interrupter)
            if outcome == "refused":
                break
            call.check()
        if interrupter.at:
            say("interrupted", number, interrupter.at)
        interrupter.is_armed, interrupter.at = False, 0.0
    say("round", number, "of rank", comm.rank, outcome)
    return outcome


def main(seed: int, rounds: int) -> None:
    """Run the rounds of a program."""
    faulthandler.enable()
    interrupter = Interrupter()
    arrays: dict[int, Any] = {count: np.empty(count) for count in SIZES}
    for number in range(rounds):
        if run_round(number, seed * 1000 + number, arrays, interrupter) == "refused":
            # MPI may still write to the arrays of an interrupted call.
            arrays = {count: np.empty(count) for count in SIZES}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
