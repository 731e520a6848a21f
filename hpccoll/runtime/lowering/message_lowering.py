"""Lowering rounds of messages: split_message, scratch, and the hazards that plans need not think of.

In a round everything is read as it stood at the round's start and lands at its end. Here that becomes an order: a
message lands directly where it belongs unless this round still reads that place; otherwise it lands in scratch and is
copied or joined after the sends that read the place are complete. A message that is not one piece of memory is packed.
So is one of PRIVATE bytes that the round overwrites: the receiver's core has then read no cache line of the place, and
to write it does not wait for a line at a time to come back (up to 2.4 times faster on one host, bench/README.md).
Messages above SEGMENT are cut, and a reduction lands in WINDOW segments of scratch that are used in turn, so scratch
stays within the cache and is bounded whatever the message. Both ends cut alike: the rule knows only the elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpccoll.plan import NO_CHUNK, IntArray, Ints, Move, Op, Region
from hpccoll.runtime.lowering.chunk_locations import ChunkLocations, align_ranges
from hpccoll.runtime.lowering.program import Copy, Instruction, MemoryKind, MemoryRange, Receive, Reduce, Send, Wait

SEGMENT = 2**20  # bytes: what is joined is still in the cache; smaller ones gain nothing more (bench/README.md)
MOST_SEGMENTS = 64
WINDOW = 2
PRIVATE = range(8 * 2**10, 256 * 2**10 + 1)  # bytes: of less, or of more, the copy costs more than it saves

OwnMove = tuple[int, int, int, IntArray, IntArray]  # to, from, op, and the chunks sent and received, of one rank


def split_message(count: int, itemsize: int) -> list[tuple[int, int]]:
    """Cut a message of `count` elements: into equal parts of about SEGMENT bytes, MOST_SEGMENTS at most."""
    parts = min(max(1, -(-count * itemsize // SEGMENT)), MOST_SEGMENTS)
    return [(count * j // parts, count * (j + 1) // parts) for j in range(parts)]


@dataclass(slots=True)
class IncomingMessage:
    """A message that this round receives: where it lands, and what happens to it then."""

    peer: int
    op: int
    chunks: IntArray
    landing: list[MemoryRange]
    home: list[MemoryRange]
    starts: list[int] = field(default_factory=list)
    rolling: bool = False


class MessageLowering:
    """Lowers one rank's messages.

    Args:
        rank: whose.
        itemsize: bytes an element.
        on_device: whether the memory is a device's, which no other rank's core caches.
        signals: whether messages without a byte are sent.
        places: of this rank's chunks.
        steps: where instructions go.
        scratch: gives that many elements of scratch.
    """

    def __init__(
        self,
        rank: int,
        itemsize: int,
        on_device: bool,
        signals: bool,
        places: ChunkLocations,
        steps: list[Instruction],
        scratch: Callable[[int], MemoryRange],
    ) -> None:
        self.rank, self.itemsize, self.on_device, self.signals = rank, itemsize, on_device, signals
        self.places, self.steps, self.scratch = places, steps, scratch

    def copy_home(self, chunks: IntArray) -> None:
        """Copy chunks to where they belong."""
        for source, out in align_ranges(self.places.now(chunks), self.places.home(chunks)):
            self.steps.append(Copy(source, out))
        self.places.settle(chunks)

    def round(self, moves: list[OwnMove]) -> None:
        """Lower what this rank sends and receives in a round."""
        moves = [move for move in moves if move[0] >= 0 or move[1] >= 0]
        remote = [move for move in moves if move[0] != self.rank]
        for to, _, _, sent, _ in remote:
            if to >= 0:
                self.gather_strays(sent)
        reads = [place for to, _, _, sent, _ in moves if to >= 0 for place in self.places.now(sent)]
        senders = [frm for _, frm, *_ in remote if frm >= 0]
        shared = _shared(moves)
        arrivals: list[IncomingMessage] = []
        local: list[tuple[IntArray, IntArray]] = []
        for _, frm, op, sent, received in moves:
            mixes = not shared.isdisjoint(received.tolist())
            if frm == self.rank and op == Op.COPY and not mixes:
                local.append((sent, received))
            elif frm == self.rank:
                arrivals.append(self.set_aside(op, sent, received))
            elif frm >= 0:
                # The later of messages that mix wait for what the first waits for: they must all be under way by then.
                alone = senders.count(frm) == 1 and not mixes
                arrivals.append(self.expect(frm, op, received, reads, alone))
        kept = [self.keep(sent, received, reads, arrivals) for sent, received in local]
        written = [place for arrival in arrivals for place in arrival.home]
        sends = [start for to, _, _, sent, _ in remote if to >= 0 for start in self.send(to, sent, written)]
        for arrival in arrivals:
            self.complete(arrival, sends)
        for start in sends:
            self.steps.append(Wait(start))
        for staged, chunks in kept:
            for source, out in align_ranges(staged, self.places.home(chunks)):
                self.steps.append(Copy(source, out))
            self.places.settle(chunks)
        for arrival in arrivals:
            self.places.settle(arrival.chunks)

    def gather_strays(self, chunks: IntArray) -> None:
        """Copy chunks home before sending where that makes one piece of many."""
        strays = self.places.strays(chunks)
        if len(strays) and len(self.places.now(chunks)) > 1 and len(self.places.home(chunks)) == 1:
            self.copy_home(strays)

    def expect(self, peer: int, op: int, chunks: IntArray, reads: list[MemoryRange], alone: bool) -> IncomingMessage:
        """Start receiving a message, directly at home where nothing there is read or joined any more."""
        home = self.places.home(chunks)
        count = sum(place.count for place in home)
        fresh = op == Op.COPY or all(place.memory is MemoryKind.SOURCE for place in self.places.now(chunks))
        direct = len(home) == 1 and fresh and not any(home[0].overlaps(read) for read in reads)
        cuts = split_message(count, self.itemsize)
        rolling = not direct and op != Op.COPY and alone and len(cuts) > WINDOW
        if direct:
            landing = [home[0].part(start, stop) for start, stop in cuts]
            reads.append(home[0])  # a second message for the same chunks must wait its turn in scratch
        elif rolling:
            longest = max(stop - start for start, stop in cuts)
            ring = [self.scratch(longest) for _ in range(WINDOW)]
            landing = [ring[j % WINDOW].part(0, stop - start) for j, (start, stop) in enumerate(cuts)]
        else:
            landing = [self.scratch(stop - start) for start, stop in cuts]
        arrival = IncomingMessage(peer, op, chunks, landing, home, rolling=rolling)
        if count or (self.signals and not len(chunks)):
            for place in landing[:WINDOW] if rolling else landing:
                self.start_receive(arrival, place)
        return arrival

    def set_aside(self, op: int, sent: IntArray, received: IntArray) -> IncomingMessage:
        """A rank's own operand among those that arrive: as it stood before the first of them took its place."""
        now = self.places.now(sent)
        if any(place.memory is not MemoryKind.SOURCE for place in now):
            staged = [self.scratch(sum(place.count for place in now))]
            for source, out in align_ranges(now, staged):
                self.steps.append(Copy(source, out))
            now = staged
        return IncomingMessage(self.rank, op, received, now, self.places.home(received))

    def start_receive(self, arrival: IncomingMessage, place: MemoryRange) -> None:
        arrival.starts.append(len(self.steps))
        self.steps.append(Receive(arrival.peer, place))

    def send(self, peer: int, chunks: IntArray, written: list[MemoryRange]) -> list[int]:
        """Start sending chunks, packed where they are many pieces, or one that is about to be `written`."""
        pieces = self.places.now(chunks)
        count = sum(place.count for place in pieces)
        if not count and not (self.signals and not len(chunks)):
            return []
        if len(pieces) > 1 or self.private(count, pieces, written):
            packed = self.scratch(count)
            for source, out in align_ranges(pieces, [packed]):
                self.steps.append(Copy(source, out))
        else:
            packed = pieces[0] if pieces else self.scratch(0)
        starts = []
        for start, stop in split_message(count, self.itemsize):
            starts.append(len(self.steps))
            self.steps.append(Send(peer, packed.part(start, stop)))
        return starts

    def private(self, count: int, pieces: list[MemoryRange], written: list[MemoryRange]) -> bool:
        """Whether to send a copy, so that only this rank's core holds the places that are written next."""
        pays = not self.on_device and count * self.itemsize in PRIVATE
        return pays and any(piece.overlaps(place) for piece in pieces for place in written)

    def keep(
        self, sent: IntArray, received: IntArray, reads: list[MemoryRange], arrivals: list[IncomingMessage]
    ) -> tuple[list[MemoryRange], IntArray]:
        """Carry out a rank's copy to itself: at once where nothing else touches the place, by way of scratch if not."""
        now, home = self.places.now(sent), self.places.home(received)
        landing = [place for arrival in arrivals for place in arrival.home]
        if any(out.overlaps(other) for out in home for other in (*reads, *landing)):
            staged = [self.scratch(sum(place.count for place in now))] if now else []
            for source, out in align_ranges(now, staged):
                self.steps.append(Copy(source, out))
            return staged, received
        for source, out in align_ranges(now, home):
            self.steps.append(Copy(source, out))
        self.places.settle(received)
        return [], received[:0]

    def complete(self, arrival: IncomingMessage, sends: list[int]) -> None:
        """Wait for a message segment by segment; join or copy it to where it belongs."""
        offset = 0
        for j, place in enumerate(arrival.landing):
            if arrival.peer != self.rank:
                if j >= len(arrival.starts):
                    return
                self.steps.append(Wait(arrival.starts[j]))
            self.absorb(arrival, place, offset, sends)
            offset += place.count
            ahead = j + WINDOW
            if arrival.rolling and ahead < len(arrival.landing):
                self.start_receive(arrival, arrival.landing[ahead])

    def absorb(self, arrival: IncomingMessage, landed: MemoryRange, offset: int, sends: list[int]) -> None:
        cut = [_within(side, offset, offset + landed.count) for side in (self.places.now(arrival.chunks), arrival.home)]
        if arrival.op == Op.COPY:
            for source, out in align_ranges([landed], cut[1]):
                if source != out:
                    self.finish_readers(out, sends)
                    self.steps.append(Copy(source, out))
        else:
            for incoming, own, out in align_ranges([landed], *cut):
                self.finish_readers(out, sends)
                left, right = (own, incoming) if arrival.op == Op.OWN_FIRST else (incoming, own)
                self.steps.append(Reduce(left, right, out))
        if offset + landed.count == sum(place.count for place in arrival.home):
            self.places.settle(arrival.chunks)

    def finish_readers(self, out: MemoryRange, sends: list[int]) -> None:
        """Wait for the sends that still read a place before it is written."""
        for start in list(sends):
            step = self.steps[start]
            if isinstance(step, Send) and step.place.overlaps(out):
                sends.remove(start)
                self.steps.append(Wait(start))


def get_own_value(value: Ints) -> int:
    """Return the only entry of a column of one rank."""
    return int(np.reshape(value, -1)[0])


def get_own_move(move: Move) -> OwnMove:
    """Return the to, from, op, and chunks sent and received of a column of one rank."""
    to, frm, op = get_own_value(move.dest), get_own_value(move.source), get_own_value(move.op)
    sent = get_own_chunks(move.send) if to >= 0 else np.empty(0, np.int64)
    received = get_own_chunks(move.recv) if frm >= 0 else np.empty(0, np.int64)
    return to, frm, op, sent, received


def _shared(moves: list[OwnMove]) -> set[int]:
    """Return the chunks that more than one message of a round is for."""
    times = Counter(chunk for *_, received in moves for chunk in received.tolist())
    return {chunk for chunk, messages in times.items() if messages > 1}


def get_own_chunks(region: Region) -> IntArray:
    """Return the chunks of a region of a column of one rank."""
    ids = region.ids(1)[0]
    return np.asarray(ids[ids != NO_CHUNK], np.int64)


def _within(side: list[MemoryRange], begin: int, end: int) -> list[MemoryRange]:
    """Return elements begin to end of a list of places."""
    found, offset = [], 0
    for place in side:
        first, last = max(begin - offset, 0), min(end - offset, place.count)
        if first < last:
            found.append(place.part(first, last))
        offset += place.count
    return found
