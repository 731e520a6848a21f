"""Symmetric buffers of CUDA memory, and fences that order the work queued on the streams of several processes.

Nothing here waits for the device. A fence of streams has three parts:

    record    this rank's event, on its current stream: all that it queued before
    meet      on the host (`Gate`): now every rank has recorded
    wait      this rank's stream, for the event of every other rank

The host goes on at once, and what it queues after starts when all that anyone queued before is done. Without `meet` a
rank could wait for an event that was not recorded yet, and such a wait is none.

Two events of each rank, used at even and odd meetings, are enough. A wait is for what was last recorded when it is
called. Rank A calls its waits of meeting k after that meeting and before it comes to meeting k + 1. Another rank
records the same event anew only for meeting k + 2, or a later one of the same parity, and so after it has left meeting
k + 1: which A had then come to, its waits of k called. With one event, used at every meeting, a fast rank could record
for meeting k + 1 what A is about to wait for at k: never wrong, since it comes later, but what A queues next would then
start only when the other's share of that phase is done, and the ranks would work one after another. Meetings without
events, of collectives on host memory, may lie in between: they count as well, alike on all ranks.
Source: CUDA Runtime API, "Event Management", cudaEventRecord and cudaStreamWaitEvent; "Device Management", IPC.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from mpi4py import MPI

from hpccoll.errors import HpccollError, UnavailableError
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.cuda.ipc import SLOTS, CupyDriver, Driver, IpcCloseCounters, get_deferred_frees
from hpccoll.runtime.shared_memory.node_barrier import Gate
from hpccoll.runtime.shared_memory.segment import mapped, words
from hpccoll.runtime.shared_memory.symmetric import Symmetric

_EVENTS: Final = 0  # the number under which closings of events are counted; buffers follow
_REMEDY: Final = (
    "CUDA IPC needs Linux (not WSL), cudaMalloc memory, no MIG slices, and ranks of one user that all see all GPUs of "
    "the node: with SLURM --gpus-per-node, not --gpus-per-task. Or pass ordinary device buffers, which go by messages"
)


class _IpcHandles(NamedTuple):
    """A rank's piece and its events, or why it has none."""

    device: str = ""
    memory: bytes = b""
    events: tuple[bytes, ...] = ()
    error: str = ""


class StreamFences:
    """StreamFences of streams; see above.

    Args:
        driver: this rank's device.
        gate: where the hosts meet.
        own: two events of this rank, for even and odd meetings.
        theirs: likewise of each other rank.
    """

    __slots__ = ("_driver", "_gate", "_own", "_theirs")

    def __init__(self, driver: Driver, gate: Gate, own: Sequence[int], theirs: Sequence[Sequence[int]]) -> None:
        self._driver, self._gate = driver, gate
        self._own, self._theirs = tuple(own), tuple(tuple(events[turn] for events in theirs) for turn in (0, 1))

    def fence(self, stream: int) -> None:
        """Let what is queued on `stream` from now on start when all that every rank queued before its fence is done."""
        turn = self._gate.turn
        self._driver.record(self._own[turn], stream)
        self._gate.fence()
        self._wait(turn, stream)

    def enter(self, stream: int, entry: int, source: int, result: int) -> bool:
        """Fence at the beginning of a collective; see `Gate.enter`."""
        turn = self._gate.turn
        self._driver.record(self._own[turn], stream)
        direct = self._gate.enter(entry, source, result)
        self._wait(turn, stream)
        return direct

    def _wait(self, turn: int, stream: int) -> None:
        for event in self._theirs[turn]:
            self._driver.wait(event, stream)

    def drop(self) -> None:
        """Let go of the others' events."""
        for events in self._theirs:
            _drop(self._driver, events)
        self._theirs = ((), ())


def _drop(driver: Driver, events: Sequence[int]) -> None:
    for event in events:
        driver.drop_event(event)


class IpcMapping:
    """A piece of another rank, mapped here; closed when nothing holds it any more."""

    def __init__(self, address: int) -> None:
        self.address = address


class _AllocationOwner:
    """A piece of this rank; its arrays hold it."""


class Device:
    """What the ranks of a node have in common on their GPUs, for one communicator; made with its first device buffer.

    Args:
        comm: all ranks; collective over it.
        here: the ranks of this host.
        gate: where they meet.
        driver: makes the driver of the device that is current.

    Raises:
        UnavailableError: on every rank, where one has no CUDA or its memory cannot be shared.
    """

    def __init__(
        self, comm: MPI.Intracomm, here: Sequence[int], gate: Gate, driver: Callable[[], Driver] = CupyDriver
    ) -> None:
        self._comm, self._others = comm, tuple(rank for rank in here if rank != comm.rank)
        made: list[Driver] = []
        self._together(lambda: made.append(driver()))
        self.driver = made[0]
        self.device = self.driver.identity()
        pieces = mapped(comm, here, 8 * SLOTS, reserve=False)
        self._closings = IpcCloseCounters(
            words(pieces[comm.rank], SLOTS), [words(pieces[rank], SLOTS) for rank in self._others]
        )
        self._number = _EVENTS
        self._last: tuple[int, object] | None = None
        self._events: list[int] = []
        offers = self._offered(lambda: _IpcHandles(events=self._exported()))
        theirs: list[list[int]] = []
        self._together(lambda: theirs.extend(map(self._open_events, self._pick(offers))))
        self._closings.made(_EVENTS)
        self._switch = self.driver.event(shared=False)
        self.fences = StreamFences(self.driver, gate, self._events, theirs)

    def empty(self, symmetric: Symmetric, shape: int | tuple[int, ...], dtype: str) -> FlatArray:
        """Return this rank's array of a new symmetric buffer on its device, uninitialised; collective.

        Raises:
            UsageError: a negative extent or an unknown dtype.
            MismatchError: ranks asked for different shapes or dtypes.
            UnavailableError: on every rank, where one has too little memory, it cannot be shared, or another device is
                current than when this communicator's first device buffer was made.
        """
        extents, kind = symmetric.agreed(shape, dtype)
        nbytes = math.prod(extents) * kind.itemsize
        get_deferred_frees().sweep()
        address, opened = self._shared(nbytes)
        self._number += 1
        self._closings.made(self._number)
        self._keep(self._number, opened)
        owned = _AllocationOwner()
        through, release = partial(self._closings.through, self._number), partial(self._release, address)
        weakref.finalize(owned, get_deferred_frees().add, through, release).atexit = False
        symmetric.record(owned, address, nbytes, dict(zip(self._others, opened, strict=True)))
        return self.driver.array(address, nbytes, owned).view(kind.numpy).reshape(extents)

    def settle(self, stream: int, keeper: object) -> None:
        """Order a collective after the one before it on this rank, which may have been queued on another stream.

        Args:
            stream: the current one.
            keeper: keeps it alive: a stream must be there when the next collective leaves it.
        """
        last = self._last
        if last is None or last[0] != stream:
            if last is not None:
                self.driver.record(self._switch, last[0])
                self.driver.wait(self._switch, stream)
            self._last = stream, keeper

    def free(self) -> None:
        """Let go of the events, once all is done that was queued; buffers are freed as blocks."""
        before = self.driver.select()
        self.driver.drain()
        self.fences.drop()
        self._closings.close(_EVENTS)
        self.driver.drop_event(self._switch)
        self.driver.restore(before)
        self._last = None
        # Another rank may be about to wait for this one's events: it left the last meeting, and is slow.
        get_deferred_frees().add(partial(self._closings.through, _EVENTS), partial(_drop, self.driver, self._events))

    def _shared(self, nbytes: int) -> tuple[int, list[IpcMapping]]:
        """Allocate this rank's piece, and map those of the others; all or nothing, on all ranks alike."""
        own: list[int] = []
        opened: list[IpcMapping] = []
        try:
            offers = self._offered(lambda: self._piece(own, nbytes))
            self._together(lambda: opened.extend(map(self._open, self._pick(offers))))
        except UnavailableError:
            for piece in opened:
                self.driver.close(piece.address)
            self._comm.Barrier()
            for address in own:
                self.driver.release(address)
            raise
        return own[0], opened

    def _release(self, address: int) -> None:
        """Free a piece that no other rank has mapped any more; what this rank queued may still touch it."""
        before = self.driver.select()
        self.driver.drain()
        self.driver.release(address)
        self.driver.restore(before)

    def _piece(self, own: list[int], nbytes: int) -> _IpcHandles:
        device = self.driver.identity()
        if device != self.device:
            raise UnavailableError(
                f"device {device} is current, but this communicator's first device buffer was made on {self.device}; "
                "make that one current again, or another communicator"
            )
        own.append(self.driver.allocate(nbytes))
        return _IpcHandles(device, self.driver.export(own[0]))

    def _exported(self) -> tuple[bytes, ...]:
        self._events += [self.driver.event(shared=True) for _ in range(2)]
        return tuple(map(self.driver.export_event, self._events))

    def _open_events(self, offer: _IpcHandles) -> list[int]:
        return [self.driver.open_event(handle) for handle in offer.events]

    def _open(self, offer: _IpcHandles) -> IpcMapping:
        return IpcMapping(self.driver.open(offer.memory))

    def _keep(self, number: int, opened: Sequence[IpcMapping]) -> None:
        """Close mappings when they are let go of, and count when all of a buffer are closed."""
        left = len(opened)

        def close(address: int) -> None:
            nonlocal left
            left -= 1
            before = self.driver.select()
            self.driver.drain()  # what is queued may still touch it
            self.driver.close(address)
            self.driver.restore(before)
            if not left:
                self._closings.close(number)

        for each in opened:
            weakref.finalize(each, close, each.address).atexit = False

    def _pick(self, offers: Sequence[_IpcHandles]) -> list[_IpcHandles]:
        return [offers[rank] for rank in self._others]

    def _offered(self, make: Callable[[], _IpcHandles]) -> list[_IpcHandles]:
        """Gather what every rank offers, or raise alike on all."""
        made: list[_IpcHandles] = []
        error = self._reason(lambda: made.append(make()))
        offers: list[_IpcHandles] = self._comm.allgather(made[0] if made else _IpcHandles(error=error))
        self._raise([each.error for each in offers])
        return offers

    def _together(self, step: Callable[[], object]) -> None:
        """Do something on every rank; where it fails on one, raise alike on all."""
        self._raise(self._comm.allgather(self._reason(step)))

    @staticmethod
    def _reason(step: Callable[[], object]) -> str:
        try:
            step()
        except (HpccollError, RuntimeError, OSError) as error:
            return str(error) or type(error).__name__
        return ""

    @staticmethod
    def _raise(errors: Sequence[str]) -> None:
        for rank, error in enumerate(errors):
            if error:
                raise UnavailableError(f"device memory cannot be shared here (rank {rank}): {error}. {_REMEDY}")
