"""A random program of which one rank is interrupted in each round; run by random_interruptions.py on several ranks.

python interrupted_program.py SEED ROUNDS FILE: in each round the ranks make a communicator and up to 600 random calls,
and a signal handler raises in one rank at a random instant of a call. The round ends when a call is refused. Every rank
checks every result. The ranks share their places in the program through FILE, so that a rank finds out that it hangs
(`HangDetector`).
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import hpccoll
from hpccoll.errors import CommunicationError

STEPS = 600
PLACES = 1000  # of a round in the program: its steps, and the creation and the end of its communicator
TICK_S = 0.02
BEHIND_S, STUCK_S = 2.0, 10.0
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


class HangDetector:
    """Ends the job if this rank stays behind another rank, or all ranks stay where they are.

    Each rank stores its place in the program, a number that only grows, in a file. A rank is behind while another
    rank's place is further, as after an interruption that this rank has not noticed. A thread measures how long. Time
    in which the main thread of a rank could run, but had no core, does not count.

    Args:
        file: the path of a file that the ranks share, with 16 bytes for each rank.
        rank: this rank.
    """

    def __init__(self, file: str, rank: int) -> None:
        self.places, self.delays = np.memmap(file, np.int64, "r+").reshape(2, -1)  # delays in nanoseconds
        self.rank, self.doing = rank, ""
        self.statistics = Path(f"/proc/self/task/{threading.main_thread().native_id}/schedstat")
        faulthandler.enable()
        threading.Thread(target=self._watch, daemon=True).start()

    def enter(self, place: int, doing: str) -> None:
        """Store the place of this rank; `doing` names what it does there."""
        self.doing = doing
        self.places[self.rank] = place

    def _watch(self) -> None:
        """Look at the places in every tick."""
        behind_s = stuck_s = 0.0
        places, delays = self.places.tolist(), self.delays.tolist()
        while behind_s < BEHIND_S and stuck_s < STUCK_S:
            before, delays_before = places, delays
            time.sleep(TICK_S)
            faulthandler.dump_traceback_later(60, exit=True)  # for a rank that keeps the lock of the interpreter
            self.delays[self.rank] = int(self.statistics.read_text().split()[1])
            places, delays = self.places.tolist(), self.delays.tolist()
            delayed_s = max(new - old for new, old in zip(delays, delays_before, strict=True)) / 1e9
            passed_s = max(TICK_S - delayed_s, 0)
            is_behind, has_moved = max(places) > places[self.rank], places[self.rank] != before[self.rank]
            behind_s = 0 if has_moved or not is_behind else behind_s + passed_s
            stuck_s = 0 if places != before else stuck_s + passed_s
        self._end("is behind" if behind_s >= BEHIND_S else "and all others are stuck")

    def _end(self, how: str) -> None:
        """Show the stacks of this rank, and end the process, so that the launcher ends the job."""
        say("hang", self.rank, how, "in", self.doing, "at", *self.places.tolist())
        faulthandler.dump_traceback()
        os._exit(3)


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
        return "finished"


def run_round(number: int, seed: int, arrays: dict[int, Any], interrupter: Interrupter, hangs: HangDetector) -> str:
    """Run one round on a new communicator; return "refused" or "finished"."""
    rng = random.Random(seed)
    outcome = "finished"
    hangs.enter(number * PLACES, "the creation of a communicator")
    with hpccoll.Communicator() as comm:
        guilty, after_s, by_sigint = rng.randrange(comm.size), rng.uniform(1e-5, 0.03), rng.random() < 0.5
        comm.barrier()
        if comm.rank == guilty:
            say("armed", number)
            interrupter.arm(after_s, by_sigint)
        for step in range(STEPS):
            call = Step(rng, comm, arrays, step)
            hangs.enter(number * PLACES + 1 + step, f"{call.kind} by {call.algorithm}")
            outcome = run_step(call, interrupter)
            if outcome == "refused":
                break
            call.check()
        if interrupter.at:
            say("interrupted", number, interrupter.at)
        interrupter.is_armed, interrupter.at = False, 0.0
        hangs.enter(number * PLACES + STEPS + 1, "close")
    say("round", number, "of rank", comm.rank, outcome)
    return outcome


def main(seed: int, rounds: int, file: str) -> None:
    """Run the rounds of a program."""
    with hpccoll.Communicator() as comm:  # imports what later calls need, which takes seconds on a busy machine
        comm.all_reduce(np.ones(3), algorithm="ring")
    interrupter, hangs = Interrupter(), HangDetector(file, comm.rank)
    arrays: dict[int, Any] = {count: np.empty(count) for count in SIZES}
    for number in range(rounds):
        if run_round(number, seed * 1000 + number, arrays, interrupter, hangs) == "refused":
            # MPI may still write to the arrays of an interrupted call.
            arrays = {count: np.empty(count) for count in SIZES}
    hangs.enter(rounds * PLACES, "the end of the program")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
