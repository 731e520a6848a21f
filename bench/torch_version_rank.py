"""A rank of a checkout's job: times batches of calls of torch.distributed as torch_backend_versions.py asks.

    PYTHONPATH=CHECKOUT mpirun -n 2 python bench/torch_version_rank.py SOCKET PRIORITY

It imports only what every checkout has: hpccoll.torch. The socket gives requests (operation, bytes, calls), and takes
the microseconds per call; None ends the job. The rank has real-time priority PRIORITY while it serves; 0 is normal
priority. A batch that takes longer than BATCH_S ends the job.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch_operations import FRESH, list_operations

import hpccoll.torch

BATCH_S = 20.0


def serve(address: str, priority: int) -> None:
    """Time batches of calls as the main process asks, until it sends None."""
    torch.set_num_threads(1)
    dist.init_process_group("hpccoll")
    rank, n = dist.get_rank(), dist.get_world_size()
    if priority:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    with Client(address, "AF_UNIX") as main_process:
        main_process.send(str(Path(hpccoll.__file__).parents[1]))
        nbytes, calls = 0, dict[str, Callable[[Any], object]]()
        while (request := main_process.recv()) is not None:
            name, wanted, batch = request
            if wanted != nbytes:
                nbytes, calls = wanted, list_operations(wanted, rank, n)
            call = partial(calls[name], dist.group.WORLD) if name != FRESH else _make_fresh(nbytes, batch)
            main_process.send(time_batch(call, batch))
    dist.destroy_process_group()


def _make_fresh(nbytes: int, batch: int) -> Callable[[], object]:
    """Return a call of all_reduce that uses another new tensor each time."""
    tensors = iter([torch.zeros(max(nbytes // 4, 1)) for _ in range(batch + 1)])
    return lambda: dist.all_reduce(next(tensors))


def time_batch(call: Callable[[], object], batch: int) -> float:
    """Return this rank's microseconds per call, over `batch` calls after a call that is not timed and a barrier."""
    faulthandler.dump_traceback_later(BATCH_S, exit=True)
    call()
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(batch):
        call()
    seconds = time.perf_counter() - begin
    faulthandler.cancel_dump_traceback_later()
    return seconds / batch * 1e6


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
