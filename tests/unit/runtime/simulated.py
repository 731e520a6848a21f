"""Runs the programs of all ranks at once in one process, by a scheduler that delays ranks and messages at random.

Messages behave as badly as MPI allows: a payload is read only when it is delivered, so a buffer that is overwritten too
early corrupts it; a receive buffer holds junk from the start of the receive; deliveries and ranks take turns at random.
A correct result therefore does not depend on timing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hpccoll.lowering import Copy, MemoryRange, Program, Receive, Reduce, Send, Wait

Array = NDArray[Any]
JUNK = -0x0DDB1A5E5BAD5EED


@dataclass(slots=True)
class Message:
    """One end of a message, and whether it is through."""

    place: Array
    done: bool = False


class Wire:
    """The messages in flight between all pairs of ranks, in order."""

    def __init__(self) -> None:
        self.sends: dict[tuple[int, int], deque[Message]] = {}
        self.receives: dict[tuple[int, int], deque[Message]] = {}

    def ready(self) -> list[tuple[int, int]]:
        """Pairs of ranks with a message to deliver."""
        return [pair for pair, waiting in self.sends.items() if waiting and self.receives.get(pair)]

    def deliver(self, pair: tuple[int, int]) -> None:
        """Deliver the oldest message of a pair."""
        sent, received = self.sends[pair].popleft(), self.receives[pair].popleft()
        assert len(sent.place) == len(received.place), f"{pair}: {len(sent.place)} sent, {len(received.place)} expected"
        received.place[:] = sent.place
        sent.done = received.done = True

    def idle(self) -> bool:
        """Whether nothing is left over."""
        return not any(map(len, [*self.sends.values(), *self.receives.values()]))


def rank_steps(
    rank: int, program: Program, memories: list[Array], wire: Wire, combine: Callable[[Array, Array], Array]
) -> Iterator[Message | None]:
    """Run one rank's program; yield the awaited messages, or None between two instructions."""

    def view(place: MemoryRange) -> Array:
        return memories[place.memory][place.start : place.stop]

    flying: dict[int, Message] = {}
    for index, step in enumerate(program.instructions):
        match step:
            case Receive(peer, place):
                flying[index] = Message(view(place))
                flying[index].place[:] = JUNK
                wire.receives.setdefault((peer, rank), deque()).append(flying[index])
            case Send(peer, place):
                flying[index] = Message(view(place))
                wire.sends.setdefault((rank, peer), deque()).append(flying[index])
            case Wait(start):
                yield flying.pop(start)
            case Reduce(left, right, out):
                view(out)[:] = combine(view(left), view(right))
            case Copy(source, out):
                view(out)[:] = view(source)
        yield None
    assert not flying, f"rank {rank} never waits for {sorted(flying)}"


def simulate(
    programs: list[Program], memories: list[list[Array]], combine: Callable[[Array, Array], Array], seed: int
) -> None:
    """Run all programs on their memories to the end; fail with the blocked ranks if they deadlock."""
    rng, wire = random.Random(seed), Wire()
    running = {rank: rank_steps(rank, program, memories[rank], wire, combine) for rank, program in enumerate(programs)}
    waits: dict[int, Message | None] = dict.fromkeys(running)
    eager = rng.random()
    while running:
        able = [rank for rank, message in waits.items() if message is None or message.done]
        ready = wire.ready()
        assert able or ready, f"ranks {sorted(running)} wait for ever"
        if ready and (not able or rng.random() < eager):
            wire.deliver(rng.choice(ready))
            continue
        rank = rng.choice(able)
        for _ in range(rng.randrange(1, 9)):
            try:
                waits[rank] = message = next(running[rank])
            except StopIteration:
                del running[rank], waits[rank]
                break
            if message is not None and not message.done:
                break
    assert wire.idle(), "messages are left over"
