"""The engines beside hpccoll's own: the MPI library's collectives, and torch.distributed's Gloo and NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.errors import CommunicationError, UnavailableError, UnknownNameError
from hpccoll.peers.base import Arranged, Call, Peer, arrange
from hpccoll.peers.mpi import MpiPeer
from hpccoll.peers.torch_dist import TorchPeer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpi4py import MPI

NAMES = ("mpi", "gloo", "nccl")

__all__ = ["NAMES", "Arranged", "Call", "MpiPeer", "Peer", "TorchPeer", "arrange", "available", "start"]


def start(name: str, comm: MPI.Intracomm) -> Peer:
    """Return the peer of that name, ready. Every rank of `comm` calls it.

    Raises:
        UnknownNameError: no such peer.
        UnavailableError: the peer is not here, on some rank; says why.
        CommunicationError: its processes did not find each other in time.
    """
    if name not in NAMES:
        raise UnknownNameError("engine", name, list(NAMES))
    return MpiPeer(comm) if name == "mpi" else TorchPeer(comm, name)


def available(comm: MPI.Intracomm, names: Iterable[str] = NAMES) -> dict[str, Peer | str]:
    """Start each peer that is here; the others are given as the reason why not. Every rank of `comm` calls it.

    torch is not imported where it is not installed, and not for `nccl` where there is no GPU.
    """
    found: dict[str, Peer | str] = {}
    for name in names:
        try:
            found[name] = start(name, comm)
        except (UnavailableError, CommunicationError) as reason:
            found[name] = str(reason)
    return found
