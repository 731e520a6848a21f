"""A job in which ranks are killed at random instants of random calls, until two ranks are left; run by random_kills.py.

    mpirun --with-ft ulfm -n 6 python -m tests.jobs.kill_program SEED DIRECTORY [one|two|shrink]

Every survivor must raise RankLostError with the dead rank, shrink, and get right results from its next 100 operations.
Rank 0 prints one line per kill: the kind of calls, the ranks, the seconds from the kill until the last survivor raised,
and those that the shrink took. The clock of CLOCK_MONOTONIC is the same for all processes of a host.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hpccoll

KINDS = "blocking", "async", "prepared", "group", "symmetric", "messages", "objects", "mixed"
SIZES = 1, 100, 5000, 2**15, 2**17
OPERATIONS_AFTER = 100
LEAST_RANKS = 2
HANGS_S = 100.0  # less than the limit of random_kills.py


def expect(array: Any, expected: Any, what: str) -> None:
    """Raise AssertionError unless an array has the expected number everywhere."""
    if not (np.asarray(array) == expected).all():
        raise AssertionError(f"silently wrong: {what}: {np.asarray(array).reshape(-1)[:4]} instead of {expected}")


def call_one(comm: hpccoll.Communicator, draw: random.Random, step: int) -> None:
    """Make one blocking collective, and check its result."""
    rank, ranks, size = comm.rank, comm.size, draw.choice(SIZES)
    kind, root, total = draw.randrange(5), draw.randrange(ranks), sum(range(ranks)) + ranks * step
    x = np.full(size, rank + step)
    match kind:
        case 0:
            expect(comm.all_reduce(x), total, "all_reduce")
        case 1:
            expect(comm.broadcast(x, root), root + step, "broadcast")
        case 2:
            expect(comm.all_gather(x)[root], root + step, "all_gather")
        case 3:
            x = np.repeat(np.arange(ranks), size) + step
            expect(comm.reduce_scatter(x), ranks * (rank + step), "reduce_scatter")
        case _:
            comm.barrier()


def make_program(kind: str, comm: hpccoll.Communicator, draw: random.Random) -> Callable[[int], None]:
    """Return a function that makes the calls of a step."""
    rank, ranks = comm.rank, comm.size
    if kind == "prepared":
        y = np.zeros(draw.choice(SIZES), np.int64)
        run = comm.all_reduce_init(y)

        def repeat(step: int) -> None:
            y[:] = rank + step
            run()
            expect(y, sum(range(ranks)) + ranks * step, kind)

        return repeat
    if kind == "group":
        members = range(rank % 2, ranks, 2)
        half = comm.new_group(members)
        assert half is not None

        def call_half(step: int) -> None:
            try:
                call_one(half, random.Random(step), step)
                # Ranks of a group without a dead rank must leave it together, or one waits for the others in it.
                has_lost = half.all_reduce(np.array([bool(comm.lost_ranks)], np.int64), op="max")[0]
            except hpccoll.RankLostError as error:
                lost = tuple(members[each] for each in error.ranks)  # `error.ranks` are ranks of the group
                raise hpccoll.RankLostError(rank, lost, error.hosts, error.operation) from error
            if has_lost:
                comm.barrier()

        return call_half
    if kind == "symmetric":
        shared = comm.empty(draw.choice(SIZES), np.int64)

        def reduce(step: int) -> None:
            shared[:] = rank + step
            expect(comm.all_reduce(shared), sum(range(ranks)) + ranks * step, kind)

        return reduce
    if kind == "messages":

        def shift(step: int) -> None:
            x, out = np.full(1000, rank + step), np.empty(1000, np.int64)
            comm.sendrecv(x, (rank + 1) % ranks, (rank - 1) % ranks, out=out)
            expect(out, (rank - 1) % ranks + step, kind)

        return shift
    if kind == "objects":
        return lambda step: expect(comm.all_gather_object(rank + step), np.arange(ranks) + step, kind)
    if kind == "async":

        def start(step: int) -> None:
            works = [comm.all_reduce(np.full(size, rank + step), async_op=True) for size in SIZES]
            for work in works:
                expect(work.wait(), sum(range(ranks)) + ranks * step, kind)

        return start
    if kind == "mixed":
        others = [make_program(each, comm, draw) for each in ("blocking", "async", "symmetric")]
        return lambda step: others[step % 3](step)
    return lambda step: call_one(comm, random.Random(step), step)


def kill_later(delay_s: float, note: Path) -> None:
    """Kill this process after a delay, and note the time just before."""

    def kill() -> None:
        time.sleep(delay_s)
        note.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def run_until_lost(comm: hpccoll.Communicator, program: Callable[[int], None]) -> hpccoll.RankLostError:
    """Run steps until a call raises RankLostError; return the error."""
    step = 0
    while True:
        try:
            program(step)
        except hpccoll.RankLostError as error:
            return error
        step += 1


def survive(comm: hpccoll.Communicator, seed: int, mode: str, directory: Path) -> hpccoll.Communicator:
    """Lose one or two ranks in a random program, and return the communicator of the others."""
    draw, ranks = random.Random(seed), comm.size
    kind = draw.choice(KINDS)
    victims = sorted(draw.sample(range(ranks), 1 if mode == "one" else 2))
    delays = [draw.random() * 0.2] * len(victims) if mode == "two" else [draw.random() * 0.2 for _ in victims]
    program = make_program(kind, comm, draw)
    comm.barrier()
    notes = [directory / f"{seed}-{victim}" for victim in victims]
    for victim, delay, note in zip(victims, delays, notes, strict=True):
        if comm.rank == victim and not (mode == "shrink" and victim == victims[1]):
            kill_later(delay, note)
    error = run_until_lost(comm, program)
    raised = time.monotonic()
    if mode == "shrink" and comm.rank == victims[1]:
        kill_later(draw.random() * 0.01, notes[1])
    assert set(error.ranks) <= set(victims), (error.ranks, victims)
    killed = float(next(note for victim, note in zip(victims, notes, strict=True) if victim in error.ranks).read_text())
    smaller = comm.shrink()
    shrunk = time.monotonic()
    if smaller.size == ranks - 1 and len(victims) == 2:  # the second death came after the shrink
        run_until_lost(smaller, lambda step: call_one(smaller, random.Random(step), step))
        smaller = smaller.shrink()
    assert smaller.size == ranks - len(victims), (smaller.size, ranks, victims)
    check_after(smaller)
    late, lasted = smaller.all_reduce(np.array([raised - killed, shrunk - raised]), op="max")
    if smaller.rank == 0:
        print(f"kill {kind} {ranks} {late:.4f} {lasted:.4f}", flush=True)
    return smaller


def check_after(comm: hpccoll.Communicator) -> None:
    """Make the operations that must be right after a shrink."""
    for step in range(OPERATIONS_AFTER // 4):
        call_one(comm, random.Random(step), step)
    for step in range(OPERATIONS_AFTER // 4, OPERATIONS_AFTER):
        expect(comm.all_reduce(np.full(1 + step, comm.rank + step)), sum(range(comm.size)) + comm.size * step, "after")


def main(seed: str, directory: str, mode: str) -> None:
    """Run the program."""
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    comm = hpccoll.Communicator(on_failure="raise")
    pids = comm.all_gather_object(os.getpid())
    if comm.rank == 0:
        print("pids", *pids, flush=True)
    number, lost = int(seed), 1 if mode == "one" else 2
    while comm.size - lost >= LEAST_RANKS:
        number += 1
        comm = survive(comm, number, mode, Path(directory))
    comm.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
