"""Faults to plant in scripts (plans written out rank by rank): each function changes one message of a script.

A function raises NoRoom if its fault cannot be planted at the given site.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

from hpccoll.plan import Op
from tests.unit.plan.referee import Ends, Script


@dataclass
class Site:
    """The place of a fault: round `t`, a move of it (`ends`), and the message of this move from `rank` to `dest`."""

    script: Script
    t: int
    ends: Ends
    rank: int
    dest: int
    chunks: int
    chance: random.Random

    @property
    def carries(self) -> int:
        """The number of chunks of the message."""
        return len(self.ends.out[self.rank])


Fault = Callable[[Site], None]


class NoRoom(Exception):
    """The fault cannot be planted here."""


def site(script: Script, chunks: int, chance: random.Random) -> Site:
    """Choose a message between two ranks."""
    places = [
        (t, ends, rank, to)
        for t, moves in enumerate(script)
        for ends in moves
        for rank, to in ends.messages()
        if rank != to
    ]
    if not places:
        raise NoRoom
    return Site(script, *chance.choice(places), chunks=chunks, chance=chance)


def need(there_is_room: bool) -> None:
    """Raise NoRoom unless the fault can be planted."""
    if not there_is_room:
        raise NoRoom


def turned(row: tuple[int, ...], by: int, chunks: int) -> tuple[int, ...]:
    """Return chunk numbers increased by `by`, modulo `chunks`."""
    return tuple((chunk + by) % chunks for chunk in row)


def wrong_peer(at: Site) -> None:
    """Send to another rank than the one that receives."""
    need(len(at.ends.dest) > 2)
    at.ends.dest[at.rank] = (at.dest + 1) % len(at.ends.dest)


def peer_out_of_range(at: Site) -> None:
    """Send to a rank that does not exist."""
    at.ends.dest[at.rank] = len(at.ends.dest)


def crossed_peers(at: Site) -> None:
    """Exchange the receivers of two messages."""
    others = [pair for pair in at.ends.messages() if pair[0] != at.rank]
    need(bool(others))
    other, there = at.chance.choice(others)
    at.ends.dest[at.rank], at.ends.dest[other] = there, at.dest
    at.ends.source[at.dest], at.ends.source[there] = other, at.rank


def swapped_rounds(at: Site) -> None:
    """Exchange two successive rounds."""
    need(at.t + 1 < len(at.script))
    at.script[at.t], at.script[at.t + 1] = at.script[at.t + 1], at.script[at.t]


def lost_round(at: Site) -> None:
    """Leave out a round."""
    del at.script[at.t]


def lost_message(at: Site) -> None:
    """Leave out a message."""
    at.ends.drop(at.rank)


def lost_chunk(at: Site) -> None:
    """Leave out the last chunk of a message."""
    need(at.carries > 0)
    at.ends.out[at.rank], at.ends.into[at.dest] = at.ends.out[at.rank][:-1], at.ends.into[at.dest][:-1]


def lost_chunk_at_one_end(at: Site) -> None:
    """Leave out the last chunk of a message at the sender only."""
    need(at.carries > 0)
    at.ends.out[at.rank] = at.ends.out[at.rank][:-1]


def doubled_round(at: Site) -> None:
    """Repeat a round."""
    at.script.insert(at.t, deepcopy(at.script[at.t]))


def doubled_message(at: Site) -> None:
    """Repeat a message in a round of its own."""
    at.script.insert(at.t + 1, [deepcopy(at.ends.alone(at.rank))])


def missing_receive(at: Site) -> None:
    """Leave out the receive of a message."""
    at.ends.source[at.dest] = -1


def missing_send(at: Site) -> None:
    """Leave out the send of a message."""
    at.ends.dest[at.rank] = -1


def delayed_message(at: Site) -> None:
    """Move a message to the next round."""
    if at.t + 1 == len(at.script):
        at.script.append([])
    at.script[at.t + 1].append(deepcopy(at.ends.alone(at.rank)))
    at.ends.drop(at.rank)


def hurried_message(at: Site) -> None:
    """Move a message to the previous round."""
    need(at.t > 0)
    at.script[at.t - 1].append(deepcopy(at.ends.alone(at.rank)))
    at.ends.drop(at.rank)


def turned_message(at: Site) -> None:
    """Let the receiver send to the sender instead."""
    alone = at.ends.alone(at.rank)
    at.ends.drop(at.rank)
    back = Ends(alone.source, alone.dest, alone.into, alone.out, [at.ends.op[at.dest]] * len(alone.op))
    at.script[at.t].append(deepcopy(back))


def flipped_order(at: Site) -> None:
    """Exchange the operands of a reduction."""
    need(at.carries > 0 and at.ends.op[at.dest] != Op.COPY)
    at.ends.op[at.dest] = 3 - at.ends.op[at.dest]


def copied_for_reduced(at: Site) -> None:
    """Replace a reduction by a copy."""
    need(at.carries > 0 and at.ends.op[at.dest] != Op.COPY)
    at.ends.op[at.dest] = Op.COPY


def reduced_for_copied(at: Site) -> None:
    """Replace a copy by a reduction."""
    need(at.carries > 0 and at.ends.op[at.dest] == Op.COPY)
    at.ends.op[at.dest] = Op.OWN_FIRST


def wrong_chunk_at_one_end(at: Site) -> None:
    """Receive into the wrong chunks."""
    need(at.carries > 0 and at.chunks > 1)
    at.ends.into[at.dest] = turned(at.ends.into[at.dest], 1, at.chunks)


def wrong_chunk_at_both_ends(at: Site) -> None:
    """Send wrong chunks and receive them into chunks of the same numbers."""
    need(0 < at.carries < at.chunks)
    at.ends.out[at.rank] = turned(at.ends.out[at.rank], 1, at.chunks)
    at.ends.into[at.dest] = turned(at.ends.into[at.dest], 1, at.chunks)


def off_by_one_first(at: Site) -> None:
    """Decrease all chunk numbers of the round by one, on all ranks and at both ends."""
    need(0 < at.carries < at.chunks)
    for ends in at.script[at.t]:
        ends.out = [turned(row, -1, at.chunks) for row in ends.out]
        ends.into = [turned(row, -1, at.chunks) for row in ends.into]


def doubled_chunk(at: Site) -> None:
    """Repeat a chunk of a message in place of its neighbour."""
    need(at.carries > 1)
    at.ends.out[at.rank] = (at.ends.out[at.rank][0], *at.ends.out[at.rank][:-1])
    at.ends.into[at.dest] = (at.ends.into[at.dest][0], *at.ends.into[at.dest][:-1])


def chunk_out_of_range(at: Site) -> None:
    """Send a chunk that does not exist."""
    need(at.carries > 0)
    at.ends.out[at.rank] = (*at.ends.out[at.rank][:-1], at.chunks)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        wrong_peer,
        peer_out_of_range,
        crossed_peers,
        swapped_rounds,
        lost_round,
        lost_message,
        lost_chunk,
        lost_chunk_at_one_end,
        doubled_round,
        doubled_message,
        missing_receive,
        missing_send,
        delayed_message,
        hurried_message,
        turned_message,
        flipped_order,
        copied_for_reduced,
        reduced_for_copied,
        wrong_chunk_at_one_end,
        wrong_chunk_at_both_ends,
        off_by_one_first,
        doubled_chunk,
        chunk_out_of_range,
    )
}
