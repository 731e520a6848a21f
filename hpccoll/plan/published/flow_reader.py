"""Readers of schedules that are lists of transfers: TE-CCL's JSON and the algorithms of TACCL and SCCL.

TE-CCL lists flows such as "Chunk 0 from 4 traveled over 4->7 in epoch 0 via switches 1". An all-gather is read from its
flows, an all-to-all from its paths, which state how each piece of a chunk travels. TACCL and SCCL list the sends of
each step. A rank may send a chunk only after a transfer of an earlier epoch or step has brought it there. Sources:
microsoft/TE-CCL (teccl/solvers) and microsoft/taccl (taccl/serialization.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.operation import Operation
from hpccoll.plan.published.block_program import (
    INPUT,
    OUTPUT,
    BlockProgram,
    BlockStep,
    Cell,
    CollectiveCells,
    Effect,
    Post,
    SemaphoreWait,
)

_FLOW = re.compile(r"Chunk (\d+) from (\d+) traveled over (\d+)->(\d+)(?: with volume ([\d.e+-]+))? in epoch (\d+)")
_HOP = re.compile(r"(\d+)->(\d+) with volume ([\d.e+-]+) in epoch (\d+)")
_DEMAND = re.compile(r"Demand at (\d+) for chunk (\d+) from (\d+)")
_VOLUME_ERROR = 1e-3  # TE-CCL's solver leaves out volumes below 1e-5, and rounds the others
RELAY = "x"  # the buffer of chunks that a rank passes on


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of one cell's contents (rank, buffer, index) between two ranks.

    Args:
        epoch: the time step of the transfer; data that it brings can be sent from the next epoch on.
        source: the cell that is read.
        target: the cell that is written.
        words: the transfer as written in the file.
        reduces: whether the contents are added to those of the target rather than copied over them.
    """

    epoch: int
    source: Cell
    target: Cell
    words: str
    reduces: bool = False


def is_teccl(document: dict[str, Any]) -> bool:
    """Whether a JSON document is a schedule of TE-CCL."""
    return any(key.endswith("-Flows") for key in document)


def is_taccl(document: dict[str, Any]) -> bool:
    """Whether a JSON document is an algorithm of TACCL or SCCL."""
    return document.get("sccl_type") == "algorithm" or document.get("msccl_type") == "algorithm"


def parse_teccl(document: dict[str, Any], name: str) -> BlockProgram:
    """Return the program of a TE-CCL schedule; `document` is the parsed JSON, and error messages call the file `name`.

    Raises:
        UsageError: a line does not have the form of TE-CCL's lines.
        PlanError: a path has a gap or ends at a wrong rank, a chunk is sent before it arrives, or a block of an
            all-to-all is not delivered whole.
    """
    flows = next(value for key, value in document.items() if key.endswith("-Flows"))
    if any("volume" in flow for flow in flows[:1]):
        paths: dict[str, Any] = next(
            (value for key, value in document.items() if key.lower().endswith("chunk paths")), {}
        )
        return _read_all_to_all(paths, name)
    matches = [_match(_FLOW, flow, name) for flow in flows]
    nodes = sorted({int(rank) for match in matches for rank in match.group(2, 3, 4)})
    ranks = {node: rank for rank, node in enumerate(nodes)}
    per = 1 + max(int(match[1]) for match in matches)
    cells = CollectiveCells(Operation.ALL_GATHER, len(nodes), per, in_place=True)
    transfers = []
    for match in matches:
        index = ranks[int(match[2])] * per + int(match[1])
        ends = [(ranks[int(node)], OUTPUT, index) for node in match.group(3, 4)]
        transfers.append(Transfer(int(match[6]), ends[0], ends[1], match[0]))
    return _make_program(name, "TE-CCL", cells, transfers, cells.list_outputs(), cells.list_homes(), cells.chunks)


def _match(pattern: re.Pattern[str], words: Any, name: str) -> re.Match[str]:
    """Return the match of `pattern` with `words`, a line of the file; raise UsageError if the line has another form."""
    match = pattern.match(words) if isinstance(words, str) else None
    if match is None:
        raise UsageError(f"{name}: {words!r:.80} has not the form of TE-CCL's lines, {pattern.pattern[:40]}...")
    return match


def _read_all_to_all(paths: dict[str, Any], name: str) -> BlockProgram:
    """Return the program of TE-CCL's all-to-all; `paths` maps each demand (a block between two ranks) to its paths."""
    demands = [(_match(_DEMAND, demand, name), pieces) for demand, pieces in paths.items()]
    nodes = sorted({int(node) for match, _ in demands for node in match.group(1, 3)})
    ranks = {node: rank for rank, node in enumerate(nodes)}
    n = len(nodes)
    most = max((len(pieces) for _, pieces in demands), default=1)
    cells = CollectiveCells(Operation.ALL_TO_ALL, n, most)
    transfers: list[Transfer] = []
    outputs: dict[Cell, tuple[int, int]] = {}
    for rank in range(n):
        transfers += [  # TE-CCL leaves out the block that stays at its rank
            Transfer(-1, (rank, INPUT, own), (rank, OUTPUT, own), "copy of the own block")
            for own in range(rank * most, rank * most + most)
        ]
    for match, pieces in demands:
        dest, source = ranks[int(match[1])], ranks[int(match[3])]
        volume = 0.0
        for piece, hops in enumerate(pieces):
            volume += _add_path(hops, (source, dest, piece), cells, ranks, transfers, f"{name}: {match[0]}")
            outputs[dest, OUTPUT, source * most + piece] = cells.required(dest, source * most + piece)
        if abs(volume - 1) > _VOLUME_ERROR:
            raise PlanError(f"{name}: {match[0]} is met by a volume of {volume:.6g} chunks; need 1")
    served = {(match[1], match[3]) for match, _ in demands}
    if len(served) != n * (n - 1):
        lacking = next((d, s) for d in nodes for s in nodes if d != s and (str(d), str(s)) not in served)
        raise PlanError(f"{name}: rank {lacking[0]} has no demand met from rank {lacking[1]}")
    homes, chunks = _place_relays(transfers, cells) if most == 1 else ({}, 0)
    remark = () if most == 1 else (f"chunks are cut into up to {most} pieces of different sizes",)
    return _make_program(name, "TE-CCL", cells, transfers, outputs, homes, chunks, remark)


def _add_path(
    hops: Sequence[Any], demand: tuple[int, int, int], cells: CollectiveCells, ranks: dict[int, int],
    transfers: list[Transfer], where: str,
) -> float:  # fmt: skip
    """Append the transfers of one path to `transfers`, and return the volume that it carries, in chunks.

    Args:
        hops: the transfers of the path in the file.
        demand: source rank, destination rank, and number of the piece of their block.
        ranks: the rank of each node number of the file.
        where: the beginning of error messages.

    Raises PlanError if the path has a gap or leaves a rank too early.
    """
    source, dest, piece = demand
    at, epoch, volume = source, -1, 0.0
    identity = (source * cells.ranks + dest) * cells.per + piece
    for hop in hops:
        match = _match(_HOP, hop[1], where)
        begin, end, now = ranks.get(int(match[1]), -1), ranks.get(int(match[2]), -1), int(match[4])
        if begin != at or end < 0:
            raise PlanError(f"{where}: {hop[1]} does not begin at rank {at}, where the chunk is")
        if now <= epoch:
            raise PlanError(f"{where}: {hop[1]} leaves before the chunk arrives, which it does in epoch {epoch}")
        start = (at, INPUT, dest * cells.per + piece) if at == source else (at, RELAY, identity)
        stop = (end, OUTPUT, source * cells.per + piece) if end == dest else (end, RELAY, identity)
        transfers.append(Transfer(now, start, stop, hop[1]))
        at, epoch, volume = end, now, float(match[3])
    if at != dest:
        raise PlanError(f"{where}: the path ends at rank {at}; need rank {dest}")
    return volume


def _place_relays(transfers: list[Transfer], cells: CollectiveCells) -> tuple[dict[Cell, int], int]:
    """Return the plan's chunk number of each cell of an all-to-all, and the number of chunks per rank.

    Chunks that a rank only passes on are given chunks of work space.
    """
    homes, n = cells.list_homes(), cells.ranks
    used = [2 * n] * n
    for transfer in transfers:
        cell = transfer.target
        if cell not in homes:
            homes[cell] = used[cell[0]]
            used[cell[0]] += 1
    return homes, -(-max(used) // n) * n


def parse_taccl(document: dict[str, Any], name: str) -> BlockProgram:
    """Return the program of a TACCL or SCCL algorithm; `document` is the parsed JSON, and errors call the file `name`.

    Raises:
        UsageError: the collective is unknown, or the number of chunks does not fit the number of ranks.
        PlanError: a chunk is sent before it arrives.
    """
    collective = str(document["collective"]["name"]).lower()
    known = {
        "allgather": Operation.ALL_GATHER, "allreduce": Operation.ALL_REDUCE,
        "reducescatter": Operation.REDUCE_SCATTER, "reduce_scatter": Operation.REDUCE_SCATTER,
    }  # fmt: skip
    operation = next((known[key] for key in known if collective.startswith(key)), None)
    n = document["collective"]["nodes"]
    addresses = {chunk["addr"] for chunk in document["collective"]["chunks"]}
    if operation is None or (operation.has_blocks and len(addresses) % n):
        raise UsageError(f"{name}: the collective {collective!r} is none of {', '.join(known)}")
    per = len(addresses) // n if operation.has_blocks else len(addresses)
    cells = CollectiveCells(operation, n, per, in_place=True)
    buffer = INPUT if operation is Operation.REDUCE_SCATTER else OUTPUT
    transfers = []
    for clock, step in enumerate(document["steps"]):
        for address, source, dest, *rest in step["sends"]:
            time = rest[0] if rest else 0
            reduces = len(rest) > 2 and rest[2] == "rrc"
            words = f"chunk {address} {source}->{dest} in step {clock}"
            moved = Transfer(clock, (source, buffer, address), (dest, buffer, address), words, reduces)
            transfers.append((time if rest else clock, moved))
    times = {time: k for k, time in enumerate(sorted({time for time, _ in transfers}))}
    ordered = [Transfer(times[t], m.source, m.target, m.words, m.reduces) for t, m in transfers]
    return _make_program(name, "TACCL", cells, ordered, cells.list_outputs(), cells.list_homes(), cells.chunks)


def _make_program(
    name: str, tool: str, cells: CollectiveCells, transfers: list[Transfer], outputs: dict[Cell, tuple[int, int]],
    homes: dict[Cell, int], plan_chunks: int, remarks: tuple[str, ...] = (),
) -> BlockProgram:  # fmt: skip
    """Return the program in which every transfer waits for the earlier transfers to its source cell.

    `transfers` are in any order. `outputs`, `homes`, `plan_chunks` and `remarks` are fields of `BlockProgram`.
    """
    inputs = cells.list_inputs()
    links = _Links(name, inputs)
    ordered = sorted(transfers, key=lambda transfer: transfer.epoch)
    for _, same in groupby(ordered, key=lambda transfer: transfer.epoch):
        links.add_epoch(list(same), ordered)
    return BlockProgram(
        name, tool, cells.operation, cells.ranks, cells.chunks, tuple(map(tuple, links.blocks.values())), inputs,
        outputs, homes, plan_chunks, len(transfers), remarks,
    )  # fmt: skip


class _Links:
    """The steps of each link (one thread block of the sender per link), and how many transfers filled each cell."""

    def __init__(self, name: str, inputs: dict[Cell, tuple[int, int]]) -> None:
        self.name, self.inputs = name, inputs
        self.blocks: dict[tuple[int, int], list[BlockStep]] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        self.begun: Counter[Cell] = Counter()
        self.done: Counter[Cell] = Counter()

    def add_epoch(self, transfers: list[Transfer], everything: list[Transfer]) -> None:
        """Add the transfers of one epoch, which may send only chunks that earlier epochs brought.

        `everything` has all transfers of the file, which error messages search for the cause.
        """
        for transfer in transfers:
            self.add(transfer, everything)
        self.done.update(transfer.target for transfer in transfers)

    def add(self, transfer: Transfer, everything: list[Transfer]) -> None:
        """Add a transfer as a step; raise PlanError if its chunk is not at its sender yet.

        `everything` has all transfers of the file, which the error message searches for the cause.
        """
        key = (transfer.source[0], transfer.target[0])
        number = self.numbers.setdefault(key, sum(pair[0] == key[0] for pair in self.numbers))
        steps = self.blocks.setdefault(key, [])
        arrived = self.done[transfer.source]
        if transfer.source not in self.inputs and not arrived:
            when = next((other.epoch for other in everything if other.target == transfer.source), None)
            why = "never arrives there" if when is None else f"arrives there in epoch {when}"
            place = BlockStep(key[0], number, len(steps), transfer.words).describe()
            raise PlanError(f"{self.name}: {place} sends a chunk from rank {key[0]} that {why}")
        waits = [SemaphoreWait(("have", *transfer.source), arrived, is_counted=True)] if arrived else []
        terms: tuple[Cell, ...] = (transfer.source,)
        if transfer.reduces:
            terms = (transfer.target, transfer.source)
            if self.begun[transfer.target]:  # transfers that add to one cell run one after the other
                waits.append(SemaphoreWait(("have", *transfer.target), self.begun[transfer.target], is_counted=True))
        self.begun[transfer.target] += 1
        effects, posts = (Effect(transfer.target, terms),), (Post(("have", *transfer.target)),)
        steps.append(BlockStep(key[0], number, len(steps), transfer.words, effects, tuple(waits), posts))
