"""A program of random collectives in which one rank commits a fault; each rank runs it under mpirun.

    mpirun -n 4 python -m tests.jobs.fault_program '{"seed": 1, "calls": 12, "fault": "kill", "guilty": 2, "at": 5}'

All ranks draw the same calls from the seed. Call number `at` of rank `guilty` is at fault; the fault `none` is none.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll

FAULTS = (
    "kill", "kill inside", "stop", "stop inside", "operation", "dtype", "count", "root", "return", "raise", "sleep",
    "mpi4py", "os._exit",
)  # fmt: skip
INSIDE_S = 0.4  # by which another rank is late, while the guilty rank waits inside of the call
ALGORITHMS = ("ring", "mpi", "shared_two_shot", "auto", "recursive_doubling")


@dataclass(frozen=True)
class DrawnCall:
    """A collective of the program."""

    operation: str
    count: int
    dtype: str
    root: int
    algorithm: str
    in_group: bool
    asynchronous: bool


def draw_calls(seed: int, calls: int, ranks: int) -> list[DrawnCall]:
    """Return the calls of a program, the same on every rank."""
    rng = random.Random(seed)
    return [
        DrawnCall(
            rng.choice(("all_reduce", "all_reduce", "broadcast", "all_gather", "reduce", "barrier")),
            rng.choice((1, 8, 100, 1000, 20_000)),
            rng.choice(("float64", "int32")),
            rng.randrange(ranks),
            rng.choice(ALGORITHMS),
            rng.random() < 0.15,
            rng.random() < 0.15,
        )
        for _ in range(calls)
    ]


def alter(call: DrawnCall, fault: str, ranks: int) -> DrawnCall:
    """Return the call of the guilty rank."""
    values = vars(call)
    if fault == "operation":
        return DrawnCall(**values | {"operation": "barrier" if call.operation != "barrier" else "all_reduce"})
    if fault == "dtype":
        return DrawnCall(**values | {"dtype": "int32" if call.dtype == "float64" else "float64"})
    if fault == "count":
        return DrawnCall(**values | {"count": call.count + 1 if call.count < 1000 else call.count // 2})
    return DrawnCall(**values | {"root": (call.root + 1) % ranks})


def choose_faulty(call: DrawnCall, fault: str) -> DrawnCall:
    """Return a call in which the fault is possible: a root needs a rooted operation, a dtype an operation with data."""
    needs_root = fault == "root" and call.operation not in ("broadcast", "reduce")
    needs_data = fault in ("dtype", "count") and call.operation == "barrier"
    operation = "broadcast" if needs_root else "all_reduce" if needs_data else call.operation
    return DrawnCall(**vars(call) | {"operation": operation, "in_group": False})


def carry_out(comm: Any, call: DrawnCall) -> None:
    """Make a collective call and wait for it."""
    if call.operation == "barrier":
        comm.barrier()
        return
    options: dict[str, Any] = {}
    if call.operation in ("broadcast", "reduce"):
        options["root"] = call.root % comm.size
    elif call.operation == "all_reduce":
        is_emulated = call.algorithm == "shared_two_shot" and "HPCCOLL_RANKS_PER_NODE" in os.environ
        options["algorithm"] = "hierarchical_ring" if is_emulated else call.algorithm
    x = np.ones(call.count, call.dtype)
    if call.asynchronous:
        getattr(comm, call.operation)(x, async_op=True, **options).wait()
    else:
        getattr(comm, call.operation)(x, **options)


def after(seconds: float, action: Callable[[], None]) -> None:
    """Call `action` in a thread after some time."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def send_signal(number: int) -> None:
    """Send a signal to this process."""
    os.kill(os.getpid(), number)


def commit(fault: str, comm: Any, call: DrawnCall) -> None:
    """Commit a fault in place of a call, or make the altered call."""
    number = signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP
    if fault in ("kill", "stop"):
        send_signal(number)
    elif fault.endswith("inside"):
        after(INSIDE_S / 2, lambda: send_signal(number))
    elif fault == "raise":
        raise ValueError("a fault")
    elif fault == "return":
        sys.exit(0)
    elif fault == "os._exit":
        os._exit(0)
    elif fault == "sleep":
        time.sleep(3600)
    elif fault == "mpi4py":
        MPI.COMM_WORLD.Barrier()
    carry_out(comm, alter(call, fault, comm.size) if fault in ("operation", "dtype", "count", "root") else call)


def run(seed: int, calls: int, fault: str, guilty: int, at: int) -> None:
    """Make the calls of the program, with the fault."""
    comm = hpccoll.Communicator()
    group = comm.new_group(list(range(0, comm.size, 2)))
    for number, drawn in enumerate(draw_calls(seed, calls, comm.size)):
        call = choose_faulty(drawn, fault) if number == at else drawn
        if number == at and comm.rank == guilty:
            print(json.dumps({"began": time.time()}), flush=True)
            commit(fault, comm, call)
        elif call.in_group:
            if group is not None:
                carry_out(group, call)
        else:
            if number == at and fault.endswith("inside") and comm.rank == (guilty + 1) % comm.size:
                time.sleep(INSIDE_S)
            carry_out(comm, call)
    comm.barrier()  # so that every fault keeps another rank waiting
    print("done", flush=True)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
