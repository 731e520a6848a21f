"""The execution of a program of thread blocks: an order of its steps, or the steps at which it deadlocks.

Each thread block runs until it must wait. Semaphores only grow, so a step that can run stays able to run, and any order
of execution reaches the same end: a deadlock is found if there is one. If the number of buffered messages per link is
limited, a send also waits for a free buffer of its link.

The vector clock of a step has, for each thread block, the number of steps that surely come before this step. Two steps
are ordered by the program if and only if one is counted in the vector clock of the other (Lamport 1978; Fidge 1988).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from hpccoll.plan.published.block_program import BlockProgram, BlockStep, Semaphore
from hpccoll.plan.step import IntArray


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step, the number of its thread block in the program, its position in the block, and its vector clock.

    The vector clock has, for each thread block, the number of steps of the block that surely come before this step; the
    step itself is counted in its own block.
    """

    step: BlockStep
    block: int
    position: int
    clock: IntArray


@dataclass(frozen=True, slots=True)
class Execution:
    """The executed steps in order; after a deadlock, also the next step of each blocked thread block and the reason."""

    executed: list[ExecutedStep]
    stuck: list[tuple[BlockStep, str]]


def execute(program: BlockProgram, buffered: int | None = None) -> Execution:
    """Return an execution of `program` with at most `buffered` messages in flight per link; None for no limit."""
    return _Executor(program, buffered).run()


def has_deadlock(program: BlockProgram, buffered: int) -> bool:
    """Whether `program` deadlocks with at most `buffered` messages in flight per link."""
    return bool(_Executor(program, buffered, with_clocks=False).run().stuck)


class _Executor:
    """Executes a program of thread blocks: keeps the semaphores and the number of the next step of each thread block.

    `buffered` is the largest number of messages in flight per link, None without limit.
    """

    def __init__(self, program: BlockProgram, buffered: int | None, *, with_clocks: bool = True) -> None:
        self.blocks, self.buffered = program.blocks, buffered
        self.at = [0] * len(self.blocks)
        width = len(self.blocks) if with_clocks else 0
        self.clocks = [np.zeros(width, np.int64) for _ in self.blocks]
        self.counts: dict[Semaphore, int] = {}
        self.posts: dict[Semaphore, list[tuple[int, IntArray]]] = {}  # values after posts, and posters' clocks
        self.waiting: dict[Semaphore, set[int]] = {}

    def run(self) -> Execution:
        """Run all thread blocks until each is at its end or blocked; return the execution."""
        executed: list[ExecutedStep] = []
        runnable = deque(range(len(self.blocks)))
        while runnable:
            block = runnable.popleft()
            while self.at[block] < len(self.blocks[block]):
                step = self.blocks[block][self.at[block]]
                missing = self.find_missing(step)
                if missing is not None:
                    self.waiting.setdefault(missing, set()).add(block)
                    break
                executed.append(self.complete(block, step))
                for post in step.posts:
                    runnable.extend(sorted(self.waiting.pop(post.semaphore, ())))
        stuck = [(self.blocks[block][at], block) for block, at in enumerate(self.at) if at < len(self.blocks[block])]
        return Execution(executed, [(step, self.explain(step)) for step, _ in stuck])

    def find_missing(self, step: BlockStep) -> Semaphore | None:
        """Return a semaphore for which the step still waits, or None if the step can run."""
        for wait in step.waits:
            if self.counts.get(wait.semaphore, 0) < wait.count:
                return wait.semaphore
        if step.slot is not None and self.buffered is not None:
            received, sent = step.slot
            if self.counts.get(received, 0) < sent + 1 - self.buffered:
                return received
        return None

    def complete(self, block: int, step: BlockStep) -> ExecutedStep:
        """Execute a step of thread block `block`, raise its semaphores, and return the step with its vector clock.

        The vector clock is computed from the clocks of the posts for which the step waited.
        """
        clock = self.clocks[block]
        if len(clock):
            clock = clock.copy()
            for wait in step.waits:
                posts = self.posts.get(wait.semaphore, [])
                reached = bisect_left(posts, wait.count, key=itemgetter(0))
                # The posts that set a value come from one block, so the last post is ordered after all earlier posts.
                for _, posted in posts[0 if wait.is_counted else reached : reached + 1]:
                    np.maximum(clock, posted, out=clock)
            clock[block] = self.at[block] + 1
            self.clocks[block] = clock
        self.at[block] += 1
        for post in step.posts:
            count = self.counts.get(post.semaphore, 0)
            self.counts[post.semaphore] = count + 1 if post.value is None else max(count, post.value)
            self.posts.setdefault(post.semaphore, []).append((self.counts[post.semaphore], clock))
        return ExecutedStep(step, block, self.at[block] - 1, clock)

    def explain(self, step: BlockStep) -> str:
        """Return the reason why a step is blocked, as a string such as `waits for thread block 2 of its rank`."""
        missing = self.find_missing(step)
        if missing is None:
            return "waits"
        kind, *place = missing
        if kind == "sent":
            return f"waits for a message from rank {place[0]} on channel {place[2]}"
        if kind == "received":
            return f"waits for a free buffer of its link to rank {place[1]}, channel {place[2]}"
        if kind == "done":
            return f"waits for thread block {place[1]} of its rank"
        if kind == "packet":
            return f"waits for a packet in {place[1]}[{place[2]}]"
        return f"waits for a signal ({' '.join(map(str, missing))})"
