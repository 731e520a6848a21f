"""A job in which ranks are killed at random instants while communicators are made; run by random_kills.py.

    mpirun --with-ft ulfm -n 4 python -m tests.jobs.making_program SEED DIRECTORY

The first kill comes while the first communicator is made, or in its first calls. The others come while ranks duplicate
MPI.COMM_WORLD, split a communicator, and make groups of all ranks and grids. Every survivor must get an error or a
communicator of the living ranks, shrink, and get right results. `new_group` of some ranks only is left out, because it
may hang in Open MPI (docs/failures.md). Rank 0 prints one line per kill, as kill_program.py does.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import hpccoll
from hpccoll.runtime import job
from tests.jobs.kill_program import HANGS_S, LEAST_RANKS, call_one, check_after, expect, kill_later

KINDS = "communicator", "split", "new_group", "cart"
FIRST_S, LATER_S = 0.12, 0.08  # the kills come within this time


def make(kind: str, comm: hpccoll.Communicator) -> hpccoll.Communicator | None:
    """Make a communicator, collectively over `comm`."""
    match kind:
        case "communicator":
            return hpccoll.Communicator(on_failure="raise")
        case "split":
            return comm.split(comm.rank % 2)
        case "new_group":
            return comm.new_group(range(comm.size))
        case _:
            return comm.cart(1, periods=True)


def make_until_lost(kind: str, comm: hpccoll.Communicator) -> None:
    """Make, use and close communicators until a rank of `comm` has died. All ranks leave each step together."""
    made: list[hpccoll.Communicator | None] = []
    while comm.agree(succeeds(lambda: made.append(make(kind, comm)))):
        new = made.pop()
        if not comm.agree((new is None or succeeds(partial(use, new, kind))) and not comm.lost_ranks):
            return


def use(made: hpccoll.Communicator, kind: str) -> None:
    """Make a call on a communicator, check its result, and close the communicator."""
    expect(made.all_reduce(np.ones(3)), made.size, kind)
    made.close()


def succeeds(call: Callable[[], object]) -> bool:
    """Make a call, and return whether it raised no RankLostError."""
    try:
        call()
    except hpccoll.RankLostError:
        return False
    return True


def call_until_lost(call: Callable[[], object]) -> None:
    """Repeat a call until it raises RankLostError."""
    while True:
        try:
            call()
        except hpccoll.RankLostError:
            return


def lose_one(kind: str, comm: hpccoll.Communicator, seed: int, directory: Path) -> hpccoll.Communicator:
    """Lose a rank while communicators are made; return the communicator of the others."""
    draw, ranks = random.Random(seed), comm.size
    victim, delay, note = draw.randrange(ranks), draw.random() * LATER_S, directory / f"{seed}"
    comm.barrier()
    if comm.rank == victim:
        kill_later(delay, note)
    make_until_lost(kind, comm)
    raised = time.monotonic()
    smaller = comm.shrink()
    report(kind, ranks, smaller, raised - float(note.read_text()), time.monotonic() - raised)
    return smaller


def lose_first(seed: int, directory: Path) -> hpccoll.Communicator:
    """Lose a rank while the first communicator is made, or in its first calls; return that of the others."""
    world = job.get_world()
    pids = world.allgather(os.getpid())
    if world.rank == 0:
        print("pids", *pids, flush=True)
    draw, ranks = random.Random(seed), world.size
    victim, delay, note = draw.randrange(ranks), draw.random() * FIRST_S, directory / f"{seed}"
    constructor = hpccoll.Communicator  # imports its modules
    world.Barrier()
    if world.rank == victim:
        kill_later(delay, note)
    comm = constructor(on_failure="raise")
    raised, kind = time.monotonic(), "first"
    if comm.size == ranks:
        step = iter(range(10**9))
        call_until_lost(lambda: call_one(comm, random.Random(seed), next(step)))
        raised, kind = time.monotonic(), "first-call"
        comm = comm.shrink()
    report(kind, ranks, comm, raised - float(note.read_text()), time.monotonic() - raised)
    return comm


def report(kind: str, ranks: int, comm: hpccoll.Communicator, raised_s: float, shrunk_s: float) -> None:
    """Check a communicator of the survivors, and print the line of a kill."""
    assert comm.size == ranks - 1, (comm.size, ranks)
    check_after(comm)
    late, lasted = comm.all_reduce(np.array([raised_s, shrunk_s]), op="max")
    if comm.rank == 0:
        print(f"kill {kind} {ranks} {late:.4f} {lasted:.4f}", flush=True)


def main(seed: str, directory: str) -> None:
    """Run the program."""
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    number = int(seed)
    comm = lose_first(number, Path(directory))
    while comm.size > LEAST_RANKS:
        number += 1
        comm = lose_one(random.Random(number).choice(KINDS), comm, number, Path(directory))
    comm.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
