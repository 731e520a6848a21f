"""Start torch.distributed on the ranks of an MPI job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from hpccoll.torch import register

NO_BACKEND = "none"


@contextmanager
def open_process_group(backend: str) -> Iterator[None]:
    """Context manager that initialises torch.distributed with `backend`, and destroys its process group at the end.

    Does nothing if `backend` is `none` or torch.distributed is already initialised. Rank, size and address come from
    the MPI job, unless the environment variables of torchrun are set. Collective over all ranks.
    """
    if backend == NO_BACKEND or dist.is_initialized():
        yield
        return
    register()
    dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()
