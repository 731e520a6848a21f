"""Finds the chunks of a shared-memory plan that other ranks load or store, and the rounds in which they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Plan, Region, Step, Store


class RemoteAccesses:
    """The loads (reads) and stores (writes) by which the ranks of a plan access each other's chunks.

    Attributes are arrays of shape (ranks, chunks):
        accessed: whether another rank accesses the chunk.
        loaded_before_write: whether another rank loads the chunk before the chunk is first written.
        loaded_after_write: whether another rank loads the chunk after the chunk is first written.
        stored: whether another rank stores to the chunk.
        loads: how often other ranks load the chunk.
        last: the last round in which another rank accesses the chunk; -1 if none does.
        written: whether the chunk was written in a round given to `record_writes`.
    """

    def __init__(self, plan: Plan) -> None:
        self.ranks = np.arange(plan.ranks)
        rounds = plan.make(self.ranks)
        self.rounds: list[Sequence[Step]] = [rounds.at(t) for t in range(rounds.count)]
        shape = plan.ranks, rounds.chunks
        self.accessed, self.loaded_before_write, self.loaded_after_write = (np.zeros(shape, np.bool_) for _ in range(3))
        self.stored, self.written = (np.zeros(shape, np.bool_) for _ in range(2))
        self.last, self.loads = np.full(shape, -1), np.zeros(shape, np.int64)
        self._loads: list[tuple[int, IntArray, IntArray]] = []
        for t, steps in enumerate(self.rounds):
            for step in steps:
                self._record_access(t, step)
            self.record_writes(t)
        self.written[:] = False

    def _record_access(self, t: int, step: Step) -> None:
        """Record which chunks a load or store of round `t` accesses in other ranks' memory."""
        if isinstance(step, Load):
            owners, chunks = self._find_remote(step.remote, step.source)
            self.loaded_before_write[owners, chunks] |= ~self.written[owners, chunks]
            self.loaded_after_write[owners, chunks] |= self.written[owners, chunks]
            np.add.at(self.loads, (owners, chunks), 1)
            self._loads.append((t, owners, chunks))
        elif isinstance(step, Store):
            owners, chunks = self._find_remote(step.remote, step.dest)
            self.stored[owners, chunks] = True
        else:
            return
        self.accessed[owners, chunks] = True
        self.last[owners, chunks] = t

    def _find_remote(self, region: Region, peer: IntArray) -> tuple[IntArray, IntArray]:
        """Return the owner and the number of each chunk in `region` that belongs to another rank, as two arrays."""
        return self._find_owned(region, np.where(peer != self.ranks, peer, NO_PEER))

    def record_writes(self, t: int) -> None:
        """Record which chunks are written in round `t`."""
        for step in self.rounds[t]:
            if isinstance(step, Fence):
                continue
            if isinstance(step, Store):
                owners, chunks = self._find_owned(step.remote, step.dest)
            else:
                region = step.local if isinstance(step, Load) else step.recv
                owners, chunks = self._find_owned(region, np.where(step.source != NO_PEER, self.ranks, NO_PEER))
            self.written[owners, chunks] = True

    def _find_owned(self, region: Region, owner: IntArray) -> tuple[IntArray, IntArray]:
        """Return two arrays, the owner and the number of each chunk in `region`; skip ranks with `owner` NO_PEER."""
        ids = region.ids(len(self.ranks))
        is_owned = (ids != NO_CHUNK) & (owner != NO_PEER)[:, None]
        return np.broadcast_to(owner[:, None], ids.shape)[is_owned], ids[is_owned]

    def loaded_between_fences(self, t: int, rank: int) -> NDArray[np.bool_]:
        """Return a mask of the chunks of `rank` that other ranks load between the fences around round `t`."""
        fences = [r for r, steps in enumerate(self.rounds) if _has_fence(steps, rank)]
        begin = max((r for r in fences if r <= t), default=-1)
        end = min((r for r in fences if r > t), default=len(self.rounds))
        loaded = np.zeros(self.accessed.shape[1], np.bool_)
        for round_, owners, chunks in self._loads:
            if begin <= round_ < end:
                loaded[chunks[owners == rank]] = True
        return loaded

    def needs_second_fence(self, t: int) -> bool:
        """Whether round `t` needs a second fence; the same on all ranks.

        A second fence is needed if, since the previous fence, a rank wrote a chunk that other ranks also loaded, and
        another rank accesses the chunk after round `t`. Between the two fences of round `t`, the writing rank copies
        the chunk's new value from scratch to the chunk's own memory.
        """
        previous = [r for r in range(t) if _has_fence(self.rounds[r])]
        written, loaded = np.zeros_like(self.accessed), np.zeros_like(self.accessed)
        for r in range(previous[-1] if previous else 0, t):
            for step in self.rounds[r]:
                if isinstance(step, Load):
                    loaded[self._find_remote(step.remote, step.source)] = True
                    owner = np.where(step.source != NO_PEER, self.ranks, NO_PEER)
                    written[self._find_owned(step.local, owner)] = True
        return bool((written & loaded & (self.last > t)).any())

    def has_late_stores(self) -> bool:
        """Whether the last fence is needed: it is the only one, or a rank stores after the second-to-last fence."""
        fences = [t for t, steps in enumerate(self.rounds) if _has_fence(steps)]
        between = self.rounds[fences[-2] :] if len(fences) > 1 else self.rounds
        return len(fences) < 2 or any(isinstance(step, Store) for steps in between for step in steps)


def _has_fence(steps: Sequence[Step], rank: int | None = None) -> bool:
    """Whether the steps contain a fence or, if `rank` is given, a fence that includes this rank."""
    return any(isinstance(step, Fence) and (rank is None or step.leader[rank] != NO_PEER) for step in steps)
