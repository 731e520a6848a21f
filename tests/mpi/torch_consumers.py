"""Runs all consumers of torch.distributed over hpccoll, over gloo and in one process; results must be equal.

To run those whose name contains one of the given words, without words all of them, or one that needs a library:

    mpirun -n 2 python -m tests.mpi.torch_consumers FSDP pipeline
    mpirun -n 2 python -m tests.mpi.torch_consumers --library lightning
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist

from tests.mpi import torch_pipelines, torch_trainers, torch_trainings
from tests.mpi.torch_trainings import Consumer, Tensors

TOLERANCE = 1e-6  # of each tensor's largest magnitude
AS_NEAR = 3  # times the error of gloo, for trainings that round gradients


def run_consumers(words: Sequence[str]) -> dict[str, tuple[Tensors, Tensors | None]]:
    """Return, per consumer whose name contains one of `words`, its result and the result of one process."""
    alone = torch_trainings.train_alone()
    runs: dict[str, Callable[[], tuple[Tensors, Tensors | None]]] = {
        name: partial(run_both, train, lambda: alone)
        for name, train in (torch_trainings.make_consumers() | torch_trainings.make_rounded()).items()
    }
    for name, (train, reference) in torch_trainings.make_others().items():
        runs[name] = partial(run_both, train, reference)
    for name in torch_pipelines.list_schedules() if dist.get_world_size() > 1 else ():
        runs[f"pipeline {name}"] = partial(torch_pipelines.train_pipeline, name)
    if dist.get_backend() == "hpccoll":
        runs["DDP with hook PowerSGD in several buckets"] = torch_trainings.train_powersgd_in_buckets
    found = {}
    for name, run in runs.items():
        if not words or any(word in name for word in words):
            print(f"rank {dist.get_rank()} begins {name}", file=sys.stderr, flush=True)  # shows where a job hangs
            found[name] = run()
    return found


def run_both(train: Consumer, reference: Consumer | None) -> tuple[Tensors, Tensors | None]:
    """Return the result of a training, and that of its reference, if there is one."""
    return train(), reference() if reference else None


def find_error(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference of a tensor, relative to its largest magnitude; infinite if a tensor is missing."""
    if found.keys() != expected.keys():
        return math.inf
    errors = [
        ((x - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-30)).item()
        for name, x in found.items()
    ]
    return max(math.inf if math.isnan(error) else error for error in errors)


def judge(name: str, found: Tensors, gloo: Tensors | None, alone: Tensors | None) -> tuple[bool, str]:
    """Return whether a result is right, and the name of the result that it was compared with."""
    if gloo is None or alone is None:
        other, expected = ("gloo", gloo) if alone is None else ("its reference", alone)
        error = math.inf if expected is None else find_error(found, expected)
        return error <= TOLERANCE, f"{other} {error:.1g}"
    to_gloo = find_error(found, gloo)
    error, error_of_gloo = find_error(found, alone), find_error(gloo, alone)
    told = f"gloo {to_gloo:.1g}, one process {error:.1g} (gloo's own {error_of_gloo:.1g})"
    if name in torch_trainings.make_rounded():
        return error <= max(TOLERANCE, AS_NEAR * error_of_gloo), told
    return max(error, to_gloo) <= TOLERANCE, told


def run_library(name: str, backend: str) -> dict[str, tuple[Tensors, Tensors | None]]:
    """Return the result of training with a library, which makes the group, and the result of one process."""
    found = torch_trainers.TRAINERS[name](backend)
    return {name: (found, torch_trainings.train_alone())}


def main() -> int:
    """Run the consumers over both backends, print one line per consumer, and return the number of wrong ones."""
    warnings.filterwarnings("ignore")
    words, wrong, results = sys.argv[1:], 0, []
    torch.set_num_threads(1)
    for backend in ("hpccoll", "gloo"):
        if words[:1] == ["--library"]:
            results.append(run_library(words[1], backend))
        else:
            dist.init_process_group(backend)
            results.append(run_consumers(words))
        dist.destroy_process_group()
        torch._dynamo.reset()  # compiled functions keep the names of groups
    for name, (found, alone) in results[0].items():
        is_right, told = judge(name, found, results[1].get(name, (None, None))[0], alone)
        wrong += not is_right
        verdict = "right" if is_right else "WRONG"
        sys.stdout.write(f"rank {os.environ['RANK']}: {name}: {verdict}, differs from {told}\n")
    return wrong


if __name__ == "__main__":
    import hpccoll.torch  # noqa: F401 - registers the backend

    sys.exit(main())
