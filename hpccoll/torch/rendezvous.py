"""Lets the MPI job itself tell torch.distributed the rank, the number of ranks and the address of rank 0.

torch.distributed reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment (its `env://` rendezvous).
MPI launchers set RANK and WORLD_SIZE under other names. When the rendezvous begins, the ranks agree on MASTER_ADDR and
MASTER_PORT through MPI.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import closing
from datetime import timedelta
from functools import wraps
from typing import Any, Final

import torch.distributed.rendezvous as _loaded  # noqa: F401 - `torch.distributed.rendezvous` itself names a function
from torch.distributed.constants import default_pg_timeout

_NAMES: Final = {  # torch's variable, and the launchers' (MPICH's mpirun and srun, Open MPI's mpirun, srun)
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}
_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"


def find_rank_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return values for RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE from the variables that mpirun or srun set.

    `environ` are the environment variables. The result is a dict without the variables that are in `environ` already.
    Returns an empty dict if the launcher has not set a rank and a number of ranks.
    """
    given = {}
    for name, launchers in _NAMES.items():
        values = [environ[variable] for variable in launchers if environ.get(variable, "").isdecimal()]
        if values:
            given[name] = values[0]
    if "RANK" not in given or "WORLD_SIZE" not in given:
        return {}
    return {name: value for name, value in given.items() if name not in environ}


def set_rank_variables() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE from the variables of mpirun or srun.

    Does nothing if RANK or WORLD_SIZE is set.
    """
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        os.environ.update(find_rank_variables(os.environ))


def set_variables_by_mpi(environ: MutableMapping[str, str], timeout: timedelta) -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in `environ` to those of the MPI job; collective.

    `set_variables_by_mpi` initializes MPI, so it works under any launcher.

    Raises:
        DistBackendError: a rank has not called the function within `timeout`.
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: the launcher belongs to another MPI library, or is torchrun.
    """
    from hpccoll.torch.mpi_start import LAUNCHER, initialize_mpi

    initialize_mpi(timeout, LAUNCHER)
    from hpccoll.runtime import job
    from hpccoll.torch.communicators import duplicate_world

    world = duplicate_world(timeout, LAUNCHER)
    layout = job.detect_layout(world)
    neighbours = layout.members[layout.node[world.rank]]
    values = (world.rank, world.size, neighbours.index(world.rank), len(neighbours))
    environ.update(zip(_NAMES, map(str, values), strict=True))


def extend_env_rendezvous() -> None:
    """Let torch's `env://` rendezvous find MASTER_ADDR and MASTER_PORT through MPI where they are not set.

    A version of torch without the table of rendezvous handlers is not changed; its users must set MASTER_ADDR and
    MASTER_PORT.
    """
    handlers = getattr(sys.modules["torch.distributed.rendezvous"], "_rendezvous_handlers", {})
    original: Callable[..., Any] | None = handlers.get("env")
    if original is None:
        return

    @wraps(original)
    def rendezvous(url: str, **options: Any) -> Any:
        """Yield the results of torch's own rendezvous, after MPI has set MASTER_ADDR and MASTER_PORT if one is missing.

        Afterwards, MASTER_ADDR and MASTER_PORT get their old values back, because the next group of all ranks needs
        another port.
        """
        if _ADDRESS in os.environ and _PORT in os.environ:
            yield from original(url, **options)
            return
        before = {name: os.environ[name] for name in (_ADDRESS, _PORT) if name in os.environ}
        set_address_variables(options.get("timeout", default_pg_timeout))
        try:
            address = next(original(url, **options))
        finally:
            for name in (_ADDRESS, _PORT):
                del os.environ[name]
            os.environ.update(before)
        yield address

    handlers["env"] = rendezvous


def set_address_variables(timeout: timedelta) -> None:
    """Set MASTER_ADDR and MASTER_PORT to a free port of rank 0's host; collective over MPI.COMM_WORLD.

    RANK and WORLD_SIZE are set to those of the MPI job if they are missing. Without an MPI launcher, the process is a
    job of one rank.

    Raises:
        DistBackendError: a rank has not called the function within `timeout`.
        UnavailableError: mpi4py or the MPI library is not installed.
        LauncherError: the launcher belongs to another MPI library.
    """
    from hpccoll.torch.mpi_start import initialize_mpi

    initialize_mpi(timeout)
    from hpccoll.runtime import job
    from hpccoll.torch.communicators import meet_all_ranks

    world = meet_all_ranks(timeout)
    host = "127.0.0.1" if job.detect_layout(world).nodes == 1 else socket.gethostname()
    address = world.bcast((host, _find_free_port()), root=0)
    os.environ.setdefault("RANK", str(world.rank))
    os.environ.setdefault("WORLD_SIZE", str(world.size))
    os.environ[_ADDRESS], os.environ[_PORT] = address[0], str(address[1])


def _find_free_port() -> int:
    """Return a TCP port that no program of this host uses now."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
