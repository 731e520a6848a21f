"""Lowers rounds of messages to instructions: cuts messages, uses scratch memory, and orders conflicting accesses.

In a plan's round, all reads see the state at the start of the round and all arrivals take effect at its end. Lowering
orders the instructions so that running them one by one has the effect of a simultaneous round. A message is received
directly into the memory of its chunks unless the round still reads this memory or reduces into it. A message that
cannot be received directly goes to scratch, and is copied or reduced into its chunks once the sends that read these
chunks are complete. A message whose chunks are not contiguous is packed before it is sent.

A message whose size is in the range PRIVATE is also packed if the round overwrites the memory that it is sent from. If
a message is packed, the receiver's core caches only the packed copy, so the sender can overwrite the original memory
without waiting for the receiver's cache lines to be invalidated. On two ranks of one host, packing made recursive
doubling in place 1.6 to 4.6 times as fast (bench/README.md).

Messages above SEGMENT bytes are cut into segments. The segments of a message to be reduced are received in turn into
WINDOW areas of scratch, which stay in the cache even if the message is long. Sender and receiver cut a message at the
same elements, because the cuts depend only on the number of elements.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hpccoll.lowering.chunk_locations import ChunkLocations, align_ranges, make_copies, slice_ranges
from hpccoll.lowering.program import Copy, Instruction, MemoryKind, MemoryRange, Receive, Reduce, Send, Wait
from hpccoll.plan import NO_CHUNK, NO_PEER, IntArray, Ints, Move, Op, Region

SEGMENT = 2**20  # bytes: a received segment is still in the cache when it is reduced (bench/README.md)
MOST_SEGMENTS = 64
WINDOW = 2
PRIVATE = range(8 * 2**10, 256 * 2**10 + 1)  # bytes: for other sizes packing costs more than it saves


class RankMove(NamedTuple):
    """One rank's part of a `Move` (transfer step); NO_PEER as `dest` means no send, as `source` no receive."""

    dest: int
    source: int
    op: int
    sent: IntArray
    received: IntArray


def split_message(count: int, itemsize: int) -> list[tuple[int, int]]:
    """Cut a message of `count` elements into segments; return a list of their bounds (start, stop) in elements.

    The number of segments is the message size divided by SEGMENT, rounded up, at least 1 and at most MOST_SEGMENTS.
    The sizes of a message's segments differ by at most one element.
    """
    segments = min(max(1, -(-count * itemsize // SEGMENT)), MOST_SEGMENTS)
    return [(count * j // segments, count * (j + 1) // segments) for j in range(segments)]


@dataclass(slots=True)
class IncomingMessage:
    """A message that this rank receives in a round, or an operand of a reduction that needs no message."""

    peer: int  # the sender
    op: int  # how the message is combined with the rank's chunks
    chunks: IntArray  # chunks that the message is for
    landing: list[MemoryRange]  # where each segment is received
    home: list[MemoryRange]  # of the chunks
    starts: list[int] = field(default_factory=list)  # the instructions that start to receive its segments
    rolling: bool = False  # whether the segments share WINDOW ranges of scratch in turn


class MessageLowering:
    """Turns one rank's sends and receives into instructions, round by round.

    Appends to `instructions`, and updates `locations`, the memory locations of the rank's chunks.

    Args:
        itemsize: bytes per element.
        on_device: whether the buffers are device memory, which the cores of other ranks do not cache.
        signals: whether messages without elements are sent.
    """

    def __init__(
        self,
        rank: int,
        itemsize: int,
        on_device: bool,
        signals: bool,
        locations: ChunkLocations,
        instructions: list[Instruction],
    ) -> None:
        self._rank, self._itemsize, self._on_device, self._signals = rank, itemsize, on_device, signals
        self._locations, self.instructions = locations, instructions

    def lower_round(self, moves: list[RankMove]) -> None:
        """Append the instructions of this rank's moves (transfer steps) of one round."""
        moves = [move for move in moves if move.dest != NO_PEER or move.source != NO_PEER]
        sends = [move for move in moves if move.dest not in (NO_PEER, self._rank)]
        for move in sends:
            self._make_contiguous(move.sent)
        reads = [part for move in moves if move.dest != NO_PEER for part in self._locations.current_ranges(move.sent)]
        incoming, local = self._receive_all(moves, reads)
        pending = [self._copy_to_self(move, reads, incoming) for move in local]
        written = [part for message in incoming for part in message.home]
        send_starts = [start for move in sends for start in self._start_send(move.dest, move.sent, written)]
        for message in incoming:
            self._finish_receive(message, send_starts)
        self.instructions.extend(map(Wait, send_starts))
        for staged, chunks in pending:
            self.instructions += make_copies(staged, self._locations.home_ranges(chunks))
            self._locations.mark_at_home(chunks)
        for message in incoming:
            self._locations.mark_at_home(message.chunks)

    def _receive_all(
        self, moves: list[RankMove], reads: list[MemoryRange]
    ) -> tuple[list[IncomingMessage], list[RankMove]]:
        """Start all receives of a round; return the messages, and the transfer steps that copy within this rank."""
        sources = [move.source for move in moves if move.source != NO_PEER and move.dest != self._rank]
        messages = Counter(chunk for move in moves for chunk in move.received.tolist())  # per chunk, in this round
        incoming: list[IncomingMessage] = []
        local: list[RankMove] = []
        for move in moves:
            is_shared = any(messages[chunk] > 1 for chunk in move.received.tolist())
            if move.source == self._rank and move.op == Op.COPY and not is_shared:
                local.append(move)
            elif move.source == self._rank:
                incoming.append(self._stage_own_operand(move))
            elif move.source != NO_PEER:
                # MPI matches the messages of one sender in order, so several receives from one sender start at once.
                # Receives for the same chunks also start at once, because a later start would delay the sender.
                may_roll = sources.count(move.source) == 1 and not is_shared
                incoming.append(self._start_receive(move, reads, may_roll))
        return incoming, local

    def _make_contiguous(self, chunks: IntArray) -> None:
        """Before a send, copy its chunks to their homes (memory for new values) if only the homes are contiguous.

        A message whose chunks are contiguous needs no packed copy in scratch.
        """
        displaced = self._locations.find_displaced(chunks)
        is_split = len(displaced) > 0 and len(self._locations.current_ranges(chunks)) > 1
        if is_split and len(self._locations.home_ranges(chunks)) == 1:
            self.instructions += self._locations.move_home(displaced)

    def _start_receive(self, move: RankMove, reads: list[MemoryRange], may_roll: bool) -> IncomingMessage:
        """Append the instructions that start to receive a message; return the message.

        The message is received into the memory for its chunks' new values if possible, else into scratch. The memory
        for the new values is appended to `reads`, so that a later message for the same memory uses scratch. If
        `may_roll`, the segments of a message to be reduced may share WINDOW areas of scratch in turn; a segment is then
        received only after its area is free again.
        """
        chunks, op = move.received, move.op
        home = self._locations.home_ranges(chunks)
        count = sum(part.count for part in home)
        current = self._locations.current_ranges(chunks)
        # NumPy takes 0.4 us longer to reduce one element in place.
        overwrites = op == Op.COPY or (count > 1 and all(part.memory is MemoryKind.SOURCE for part in current))
        direct = len(home) == 1 and overwrites and not any(home[0].overlaps(read) for read in reads)
        cuts = split_message(count, self._itemsize)
        rolling = not direct and op != Op.COPY and may_roll and len(cuts) > WINDOW
        if direct:
            landing = [home[0].part(start, stop) for start, stop in cuts]
        elif rolling:
            longest = max(stop - start for start, stop in cuts)
            window = [self._locations.take_scratch(longest) for _ in range(WINDOW)]
            landing = [window[j % WINDOW].part(0, stop - start) for j, (start, stop) in enumerate(cuts)]
        else:
            landing = [self._locations.take_scratch(stop - start) for start, stop in cuts]
        reads.extend(home)
        message = IncomingMessage(move.source, op, chunks, landing, home, rolling=rolling)
        if count or (self._signals and not len(chunks)):
            for part in landing[:WINDOW] if rolling else landing:
                self._receive_segment(message, part)
        return message

    def _receive_segment(self, message: IncomingMessage, part: MemoryRange) -> None:
        """Append the instruction that starts to receive one segment of a message."""
        message.starts.append(len(self.instructions))
        self.instructions.append(Receive(message.peer, part))

    def _stage_own_operand(self, move: RankMove) -> IncomingMessage:
        """Return a reduction within this rank as a message, with the operand copied to scratch if it may change."""
        current = self._locations.current_ranges(move.sent)
        if any(part.memory is not MemoryKind.SOURCE for part in current):
            current = self._stage(current)
        return IncomingMessage(self._rank, move.op, move.received, current, self._locations.home_ranges(move.received))

    def _stage(self, ranges: list[MemoryRange]) -> list[MemoryRange]:
        """Copy ranges into one range of scratch memory, and return this range."""
        staged = [self._locations.take_scratch(sum(part.count for part in ranges))]
        self.instructions += make_copies(ranges, staged)
        return staged

    def _start_send(self, dest: int, chunks: IntArray, written: list[MemoryRange]) -> list[int]:
        """Append the instructions that start sending chunks, packed if needed; return the indices of the `Send`s.

        `written` are the ranges that this round overwrites.
        """
        ranges = self._locations.current_ranges(chunks)
        count = sum(part.count for part in ranges)
        if not count and not (self._signals and not len(chunks)):
            return []
        # Sending a packed copy keeps other cores from caching the original memory, which this round overwrites.
        may_pack = not self._on_device and count * self._itemsize in PRIVATE
        if len(ranges) > 1 or (may_pack and any(part.overlaps(other) for part in ranges for other in written)):
            packed = self._stage(ranges)[0]
        else:
            packed = ranges[0] if ranges else self._locations.take_scratch(0)
        starts = []
        for start, stop in split_message(count, self._itemsize):
            starts.append(len(self.instructions))
            self.instructions.append(Send(dest, packed.part(start, stop)))
        return starts

    def _copy_to_self(
        self, move: RankMove, reads: list[MemoryRange], incoming: list[IncomingMessage]
    ) -> tuple[list[MemoryRange], IntArray]:
        """Copy chunks to other chunks of this rank, or to scratch if the round still uses the other chunks' memory.

        Returns: the ranges of scratch used, and the chunks to fill from scratch at the end of the round; empty if none.
        """
        current, home = self._locations.current_ranges(move.sent), self._locations.home_ranges(move.received)
        landing = [part for message in incoming for part in message.home]
        if any(out.overlaps(other) for out in home for other in (*reads, *landing)):
            return self._stage(current) if current else [], move.received
        self.instructions += make_copies(current, home)
        self._locations.mark_at_home(move.received)
        return [], move.received[:0]

    def _finish_receive(self, message: IncomingMessage, send_starts: list[int]) -> None:
        """Wait for a message segment by segment, and copy or reduce each segment into the message's chunks.

        `send_starts` are the numbers of the `Send` instructions of the round for which no `Wait` exists yet.
        """
        offset = 0
        for j, part in enumerate(message.landing):
            if message.peer != self._rank:
                if j >= len(message.starts):
                    return
                self.instructions.append(Wait(message.starts[j]))
            self._consume_segment(message, part, offset, send_starts)
            offset += part.count
            following = j + WINDOW
            if message.rolling and following < len(message.landing):
                self._receive_segment(message, message.landing[following])

    def _consume_segment(
        self, message: IncomingMessage, landed: MemoryRange, offset: int, send_starts: list[int]
    ) -> None:
        """Copy or reduce a received segment into the message's chunks; after the last, mark the chunks as updated.

        `offset` is the number of elements of the message before the segment.
        """
        stop = offset + landed.count
        current = slice_ranges(self._locations.current_ranges(message.chunks), offset, stop)
        home = slice_ranges(message.home, offset, stop)
        if message.op == Op.COPY:
            for source, out in align_ranges([landed], home):
                if source != out:
                    self._wait_for_sends_of(out, send_starts)
                    self.instructions.append(Copy(source, out))
        else:
            for incoming, own, out in align_ranges([landed], current, home):
                self._wait_for_sends_of(out, send_starts)
                left, right = (own, incoming) if message.op == Op.OWN_FIRST else (incoming, own)
                self.instructions.append(Reduce(left, right, out))
        if stop == sum(part.count for part in message.home):
            self._locations.mark_at_home(message.chunks)

    def _wait_for_sends_of(self, out: MemoryRange, send_starts: list[int]) -> None:
        """Wait for the sends that still read `out`, and remove them from `send_starts`."""
        for start in list(send_starts):
            instruction = self.instructions[start]
            if isinstance(instruction, Send) and instruction.place.overlaps(out):
                send_starts.remove(start)
                self.instructions.append(Wait(start))


def get_own_value(value: Ints) -> int:
    """Return `value` as an integer; it comes from a plan's part for one rank, so it has a single entry."""
    return int(np.reshape(value, -1)[0])


def get_own_chunks(region: Region) -> IntArray:
    """Return the numbers of the chunks in a region that has one row, as in a plan's part for one rank."""
    ids = region.ids(1)[0]
    return np.asarray(ids[ids != NO_CHUNK], np.int64)


def get_own_move(move: Move) -> RankMove:
    """Convert a `Move` (transfer step) from the plan's part for one rank to a `RankMove`."""
    dest, source, op = get_own_value(move.dest), get_own_value(move.source), get_own_value(move.op)
    none = np.empty(0, np.int64)
    sent = get_own_chunks(move.send) if dest != NO_PEER else none
    return RankMove(dest, source, op, sent, get_own_chunks(move.recv) if source != NO_PEER else none)
