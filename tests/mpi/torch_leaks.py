"""Calls collectives of torch.distributed very often, and reports leaked descriptors, mappings and memory.

mpirun -n 2 python -m tests.mpi.torch_leaks --calls 100000
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

COUNTS = (1, 3, 64, 1000, 4096, 40_000)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bfloat16)
LIMITS = {"descriptors": 0, "mappings": 40, "shared files": 0, "MiB": 24}


def reduce_fresh(rng: random.Random) -> None:
    """All-reduce a new tensor."""
    dist.all_reduce(torch.ones(rng.choice(COUNTS), dtype=rng.choice(DTYPES)))


def reduce_view(rng: random.Random) -> None:
    """All-reduce a view that is not contiguous, and one that is a slice."""
    whole = torch.ones(4, rng.choice(COUNTS))
    dist.all_reduce(whole.t()[:2])
    dist.all_reduce(whole[1])


def gather_alias(rng: random.Random) -> None:
    """All-gather with an input that is a block of the output."""
    count, n, rank = rng.choice(COUNTS), dist.get_world_size(), dist.get_rank()
    out = torch.zeros(n * count)
    dist.all_gather_into_tensor(out, out[rank * count : (rank + 1) * count])


def scatter_alias(rng: random.Random) -> None:
    """Reduce-scatter into a block of the input."""
    count, n, rank = rng.choice(COUNTS), dist.get_world_size(), dist.get_rank()
    x = torch.zeros(n * count)
    dist.reduce_scatter_tensor(x[rank * count : (rank + 1) * count], x)


def exchange_uneven(rng: random.Random) -> None:
    """All-to-all of blocks of different sizes."""
    n, rank = dist.get_world_size(), dist.get_rank()
    sizes = [[rng.randrange(50) for _ in range(n)] for _ in range(n)]
    received = [row[rank] for row in sizes]
    dist.all_to_all_single(torch.zeros(sum(received)), torch.ones(sum(sizes[rank])), received, sizes[rank])


def reduce_later(rng: random.Random) -> None:
    """Start several all-reduces of new tensors, and wait for them in the order of their start."""
    for work in [dist.all_reduce(torch.ones(rng.choice(COUNTS)), async_op=True) for _ in range(3)]:
        work.wait()


def send_around(rng: random.Random) -> None:
    """Send a new tensor to the next rank."""
    n, rank, count = dist.get_world_size(), dist.get_rank(), rng.choice(COUNTS)
    sent = dist.isend(torch.ones(count), (rank + 1) % n)
    dist.recv(torch.empty(count), (rank - 1) % n)
    sent.wait()


def bind_kept_tensors() -> Callable[[random.Random], None]:
    """Return a call on tensors that stay, but whose storage is resized, replaced or used again."""
    kept = [torch.ones(count) for count in COUNTS]

    def reduce_kept(rng: random.Random) -> None:
        """Resize or replace the storage of a tensor, or leave it, and all-reduce the tensor."""
        x, change = rng.choice(kept), rng.randrange(4)
        if change == 0:
            nbytes = x.untyped_storage().nbytes()
            x.untyped_storage().resize_(0)
            x.untyped_storage().resize_(nbytes)
        elif change == 1:
            x.data = torch.empty_like(x)
        x.fill_(1)
        dist.all_reduce(x)

    return reduce_kept


def measure() -> dict[str, int]:
    """Return the numbers of descriptors, mappings and bytes of this process.

    `shared files` are those in /dev/shm that have its process id in their name.
    """
    gc.collect()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mappings": len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()),
        "shared files": len(list(Path("/dev/shm").glob(f"*-{os.getpid()}-*"))),
        "MiB": psutil.Process().memory_info().rss >> 20,
    }


def main() -> None:
    """Make the calls; exit with status 1 if the process keeps more at the end than after a tenth of the calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("hpccoll")
    calls: list[Callable[[random.Random], Any]] = [
        reduce_fresh, reduce_view, gather_alias, scatter_alias, exchange_uneven, reduce_later, send_around,
        bind_kept_tensors(),
    ]  # fmt: skip
    rng = random.Random(options.seed)
    before: dict[str, int] = {}
    for number in range(options.calls):
        if number == options.calls // 10:
            dist.barrier()
            before = measure()
        rng.choice(calls)(rng)
    dist.barrier()
    after = measure()
    dist.barrier()
    grown = {name: after[name] - before[name] for name in before}
    sys.stdout.write(f"rank {dist.get_rank()}: after {options.calls} calls {after}, growth {grown}\n")
    dist.destroy_process_group()
    sys.exit(any(grown[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    import hpccoll.torch  # noqa: F401 - registers the backend

    main()
