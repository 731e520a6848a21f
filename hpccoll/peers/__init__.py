"""Engines to compare hpccoll with: the MPI library, and torch.distributed with Gloo, NCCL or hpccoll itself.

Start reading with `LibraryEngine` in library_engine.py; `start_engine` starts an engine by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.errors import CommunicationError, UnavailableError, UnknownNameError
from hpccoll.peers.library_engine import LibraryEngine
from hpccoll.peers.mpi_engine import MpiEngine
from hpccoll.peers.torch_engine import TORCH_OWN, TorchEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpi4py import MPI

OTHER_LIBRARIES = ("mpi", "gloo", "nccl")
ENGINE_NAMES = (*OTHER_LIBRARIES, TORCH_OWN)

__all__ = [
    "ENGINE_NAMES", "OTHER_LIBRARIES", "LibraryEngine", "MpiEngine", "TorchEngine", "start_engine", "start_engines",
]  # fmt: skip


def start_engine(name: str, comm: MPI.Intracomm) -> LibraryEngine:
    """Start and return an engine, a library whose collectives hpccoll is compared with. Collective over `comm`.

    `name` is one of ENGINE_NAMES: `mpi`, `gloo`, `nccl`, or `torch-hpccoll` (hpccoll as a torch backend).

    Raises:
        UnknownNameError: `name` is not the name of an engine.
        UnavailableError: the engine cannot run on some rank; the message says why.
        CommunicationError: the engine's processes did not connect to each other in time.
    """
    if name not in ENGINE_NAMES:
        raise UnknownNameError("engine", name, list(ENGINE_NAMES))
    return MpiEngine(comm) if name == "mpi" else TorchEngine(comm, name)


def start_engines(
    comm: MPI.Intracomm, names: Iterable[str], *, requires_all: bool = False
) -> tuple[list[LibraryEngine], list[str]]:
    """Start and return those of the named engines that can run, and say why others cannot. Collective over `comm`.

    Args:
        comm: the communicator on which the engines run.
        names: names of engines, as in `start_engine`.
        requires_all: raise an error if any of the engines cannot run.

    Returns:
        The started engines, and `NAME: REASON` for each engine that cannot run. No reason is given for a missing
        `nccl`, because few machines have NCCL.

    Raises:
        UnavailableError: `requires_all` is set, and some engine cannot run; the message has all reasons.
    """
    started, missing = [], []
    for name in names:
        try:
            started.append(start_engine(name, comm))
        except (UnavailableError, CommunicationError) as reason:
            missing.append(f"{name}: {reason}")
    if missing and requires_all:
        raise UnavailableError(f"requested engines are not available: {'; '.join(missing)}")
    return started, [engine for engine in missing if not engine.startswith("nccl")]
