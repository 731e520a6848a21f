"""Run `hpccoll bench` with a delay in every call of one operation of hpccoll, for trials of `hpccoll compare`.

    mpirun -n 2 python bench/delayed_bench.py broadcast 10 broadcast all_reduce -b 1K -e 64K --json slower.jsonl

The arguments are the operation, the delay in percent of the operation's median time, and the arguments of `hpccoll
bench`. The delay is a busy wait. With 0 percent, calls run the same code without a wait. The engine `mpi` is unchanged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpccoll.cli.main import main
from hpccoll.measure import contenders
from hpccoll.measure.interleaved import Contender
from hpccoll.measure.workload import Workload

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

Prepare = Callable[["Communicator", Workload, str], Contender]


def delay_calls(contender: Contender, fraction: float) -> None:
    """Let every call of `contender` wait for `fraction` of its median time without the wait."""
    call, count, wait_s = contender.call, -1, 0.0

    def call_and_wait() -> None:
        nonlocal count, wait_s
        if len(contender.samples_us) != count:  # samples contain the wait
            count = len(contender.samples_us)
            wait_s = contender.median_us * 1e-6 * fraction / (1 + fraction) if count else 0.0
        call()
        end = time.perf_counter() + wait_s
        while time.perf_counter() < end:
            pass

    contender.call = call_and_wait


def delay_operation(prepare: Prepare, op: str, fraction: float) -> Prepare:
    """Return a function like `contenders.prepare_own` whose contenders wait if they run operation `op`."""

    def prepare_delayed(comm: Communicator, workload: Workload, algorithm: str) -> Contender:
        contender = prepare(comm, workload, algorithm)
        delay_calls(contender, fraction if workload.task.operation.value == op else 0.0)
        return contender

    return prepare_delayed


if __name__ == "__main__":
    delayed = delay_operation(contenders.prepare_own, sys.argv[1], float(sys.argv[2]) / 100)
    setattr(contenders, contenders.prepare_own.__name__, delayed)
    sys.exit(main(["bench", *sys.argv[3:]]))
