"""The engines beside hpccoll's own: the MPI library's collectives, and torch.distributed's Gloo and NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.errors import CommunicationError, UnavailableError, UnknownNameError
from hpccoll.peers.library_engine import Call, CheckedBuffers, LibraryEngine, check_buffers
from hpccoll.peers.mpi_engine import MpiEngine
from hpccoll.peers.torch_engine import TorchEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpi4py import MPI

ENGINE_NAMES = ("mpi", "gloo", "nccl")

__all__ = [
    "ENGINE_NAMES",
    "Call",
    "CheckedBuffers",
    "LibraryEngine",
    "MpiEngine",
    "TorchEngine",
    "check_buffers",
    "start_available_engines",
    "start_engine",
]


def start_engine(name: str, comm: MPI.Intracomm) -> LibraryEngine:
    """Return the peer of that name, ready. Every rank of `comm` calls it.

    Raises:
        UnknownNameError: no such peer.
        UnavailableError: the peer is not here, on some rank; says why.
        CommunicationError: its processes did not find each other in time.
    """
    if name not in ENGINE_NAMES:
        raise UnknownNameError("engine", name, list(ENGINE_NAMES))
    return MpiEngine(comm) if name == "mpi" else TorchEngine(comm, name)


def start_available_engines(comm: MPI.Intracomm, names: Iterable[str] = ENGINE_NAMES) -> dict[str, LibraryEngine | str]:
    """Start each peer that is here; the others are given as the reason why not. Every rank of `comm` calls it.

    torch is not imported where it is not installed, and not for `nccl` where there is no GPU.
    """
    found: dict[str, LibraryEngine | str] = {}
    for name in names:
        try:
            found[name] = start_engine(name, comm)
        except (UnavailableError, CommunicationError) as reason:
            found[name] = str(reason)
    return found
