"""Runs all consumers of torch.distributed over hpccoll, over gloo and in one process; results must be equal.

To run those whose name contains FSDP, or without a name all of them:

    mpirun -n 2 python -m tests.mpi.torch_consumers FSDP
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping

import torch
import torch.distributed as dist

from tests.mpi import torch_pipelines, torch_trainings
from tests.mpi.torch_trainings import Tensors

TOLERANCE = 1e-6  # of each tensor's largest magnitude


def run_consumers(names: str) -> dict[str, tuple[Tensors, Tensors | None]]:
    """Return, per consumer whose name contains `names`, its result and the result of one process."""
    found: dict[str, tuple[Tensors, Tensors | None]] = {}
    alone = torch_trainings.train_alone()
    for name, consumer in torch_trainings.make_consumers().items():
        if names in name:
            found[name] = consumer(), alone
    for name, (consumer, reference) in torch_trainings.make_others().items():
        if names in name:
            found[name] = consumer(), reference() if reference else None
    for name in torch_pipelines.SCHEDULES:
        if names in f"pipeline {name}" and dist.get_world_size() > 1:
            found[f"pipeline {name}"] = torch_pipelines.train_pipeline(name)
    return found


def find_difference(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> str:
    """Return which tensor differs by more than the tolerance, and by how much; an empty string if none does."""
    if found.keys() != expected.keys():
        return f"one side lacks {sorted(found.keys() ^ expected.keys())}"
    for name, x in found.items():
        error = ((x - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-30)).item()
        if not error <= TOLERANCE:
            return f"{name} differs by {error:.1g} of its largest magnitude"
    return ""


def main() -> int:
    """Run the consumers over both backends, print one line per consumer, and return the number of wrong ones."""
    warnings.filterwarnings("ignore")
    names, wrong = " ".join(sys.argv[1:]), 0
    results = []
    for backend in ("hpccoll", "gloo"):
        dist.init_process_group(backend)
        torch.set_num_threads(1)
        results.append(run_consumers(names))
        dist.destroy_process_group()
        torch._dynamo.reset()  # compiled functions keep the names of groups
    for name, (found, alone) in results[0].items():
        expected = {"gloo": results[1][name][0]} | ({} if alone is None else {"one process": alone})
        differences = [f"{other}: {each}" for other, x in expected.items() if (each := find_difference(found, x))]
        wrong += bool(differences)
        told = "; ".join(differences) or f"equals {' and '.join(expected)}"
        print(f"rank {os.environ['RANK']}: {name}: {told}", flush=True)
    return wrong


if __name__ == "__main__":
    import hpccoll.torch  # noqa: F401 - registers the backend

    sys.exit(main())
