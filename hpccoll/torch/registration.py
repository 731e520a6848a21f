"""Registers the backend "hpccoll" with torch.distributed, without importing mpi4py or initializing MPI."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from hpccoll.torch.rendezvous import extend_env_rendezvous, set_rank_variables

BACKEND: Final = "hpccoll"


def register() -> None:
    """Make the backend "hpccoll" known to torch.distributed; repeated calls do nothing.

    Unless RANK or WORLD_SIZE is set, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are set from the variables of
    the MPI launcher, so that scripts written for torchrun read the right values. Torch's `env://` rendezvous is
    extended: unless MASTER_ADDR and MASTER_PORT are set, the ranks agree on both through MPI.
    """
    if not dist.is_available() or BACKEND in dist.Backend.backend_list:
        return
    set_rank_variables()
    extend_env_rendezvous()
    devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]  # torch looks for a device of each name
    dist.Backend.register_backend(BACKEND, _create_group, extended_api=True, devices=devices)


def _create_group(options: Any, backend_options: Any) -> Any:
    """Initialize MPI and return a new process group, or a backend for a group of several backends (torch from 2.14).

    Torch calls the function on the ranks of the group, over which it is collective. `options` are torch's description
    of the group, and `backend_options` the user's `pg_options`, or None.
    """
    from hpccoll.torch.mpi_start import initialize_mpi

    timeout = options.timeout
    timeout = timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout))
    initialize_mpi(timeout)
    from hpccoll.torch.creation import create_group

    return create_group(options, backend_options, timeout)
