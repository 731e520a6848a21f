"""Runs every example's calls in mpi4py and torch.distributed under mpirun; rank 0 prints the values of all ranks."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.demo import in_mpi4py, in_torch
from hpccoll.demo.examples import EXAMPLES
from hpccoll.plan import Operation


def plain(value: Any) -> Any:
    """Arrays and tensors as nested lists."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def main() -> None:
    """Run the examples that take as many ranks as there are."""
    world = MPI.COMM_WORLD
    libraries: dict[str, Any] = {"mpi4py": lambda call, args: getattr(in_mpi4py, call)(MPI, world, *args)}
    close: Callable[[], object] = list  # nothing to end
    if importlib.util.find_spec("torch") is not None:
        import torch
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if world.rank == 0 else None
        port = world.bcast(store.port if store else None)
        store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
        limit = timedelta(seconds=60)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size, timeout=limit)

        def by_torch(call: str, args: tuple[Any, ...]) -> Any:
            tensors = [torch.from_numpy(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
            return getattr(in_torch, call)(torch, dist, *tensors)

        libraries["torch"], close = by_torch, dist.destroy_process_group
    for example in EXAMPLES:
        if example.ranks != world.size or example.operation is Operation.BARRIER:
            continue
        for library, run in libraries.items():
            after = []
            for call in example.calls:
                result = run(call, example.make_arguments(world.rank))
                after += [plain(value) for value in (result if isinstance(result, tuple) else (result,))]
            held = world.gather(after)
            if world.rank == 0:
                print(json.dumps([library, example.name, held]))
    world.Barrier()
    close()


if __name__ == "__main__":
    main()
