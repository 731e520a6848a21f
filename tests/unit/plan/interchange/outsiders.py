"""Small executors of GOAL and MSCCL files, independent of hpccoll, which check exported plans."""

from __future__ import annotations

import random
import re
from collections import defaultdict, deque
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

import numpy as np

Wires = defaultdict[tuple[int, int], deque[np.ndarray]]  # by sender and receiver
GOAL_LINE = re.compile(
    r"(?:(?P<label>[a-zA-Z]\w*): (?P<kind>send|recv) (?P<size>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+)"
    r"|(?P<later>[a-zA-Z]\w*) requires (?P<earlier>[a-zA-Z]\w*))"
)


@dataclass
class Schedule:
    """A GOAL file, read as txt2bin reads it: by rank and label (kind, bytes, peer, tag), and what each requires."""

    ranks: int
    operations: list[dict[str, tuple[str, int, int, int]]]
    requires: list[dict[str, set[str]]]


def read_goal(text: str) -> Schedule:
    lines = iter(text.splitlines())
    head = re.fullmatch(r"num_ranks (\d+)", next(lines))
    assert head is not None
    found = Schedule(int(head[1]), [], [])
    for line in lines:
        if not line:
            continue
        assert line == f"rank {len(found.operations)} {{"  # txt2bin stops at the last rank: they come in order
        operations: dict[str, tuple[str, int, int, int]] = {}
        requires: dict[str, set[str]] = defaultdict(set)
        for inner in lines:
            if inner == "}":
                break
            match = GOAL_LINE.fullmatch(inner)
            assert match is not None, inner
            if match["label"]:
                assert match["label"] not in operations
                assert (" to " in inner) == (match["kind"] == "send")
                size, peer, tag = (int(match[key]) for key in ("size", "peer", "tag"))
                operations[match["label"]] = match["kind"], size, peer, tag
            else:
                assert {match["later"], match["earlier"]} <= set(operations), "a label is used before it is defined"
                requires[match["later"]].add(match["earlier"])
        found.operations.append(operations)
        found.requires.append(requires)
    assert len(found.operations) == found.ranks
    return found


def run_goal(schedule: Schedule) -> int:
    """Return the bytes that crossed; raise where the schedule does not end or a message is left over."""
    sent: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    done: list[set[str]] = [set() for _ in range(schedule.ranks)]
    total, moved = 0, True
    while moved:
        moved = False
        for rank, operations in enumerate(schedule.operations):
            for label, (kind, size, peer, tag) in operations.items():
                if label in done[rank] or not schedule.requires[rank].get(label, set()) <= done[rank]:
                    continue
                if kind == "recv" and not sent[peer, rank, tag]:
                    continue
                if kind == "send":
                    assert size >= 1, "LogGOPSim charges size - 1"
                    sent[rank, peer, tag].append(size)
                    total += size
                else:
                    assert sent[peer, rank, tag].popleft() == size
                done[rank].add(label)
                moved = True
    assert all(len(each) == len(operations) for each, operations in zip(done, schedule.operations, strict=True)), (
        "stuck"
    )
    assert not any(sent.values()), "a message is never received"
    return total


@dataclass
class Block:
    """A threadblock: its steps, and how many are done."""

    gpu: int
    send: int
    recv: int
    steps: list[dict[str, str]]
    at: int = 0
    bufs: dict[str, np.ndarray] = field(default_factory=dict)


def read_msccl(text: str, memory: list[dict[str, np.ndarray]]) -> dict[tuple[int, int], Block]:
    """Read an MSCCL file under the rules of its runtime's reader; `memory` gives buffers i, o, s of each gpu."""
    algo = ET.fromstring(text)
    top = algo.attrib
    n, loop = int(top["ngpus"]), int(top["nchunksperloop"])
    places = {"inplace", "outofplace", "minBytes", "maxBytes"}
    assert set(top) == {"name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll"} | places
    assert {top["inplace"], top["outofplace"]} == {"0", "1"}
    assert top["coll"] in {"allreduce", "allgather", "reduce", "broadcast", "alltoall", "reduce_scatter"}
    blocks = {}
    assert [int(gpu.attrib["id"]) for gpu in algo] == list(range(n))
    for rank, gpu in enumerate(algo):
        sizes = {key: int(gpu.attrib[f"{key}_chunks"]) for key in "ios"}
        assert sizes["i"] * (n if top["coll"] == "allgather" else 1) == loop
        assert sizes["o"] * (n if top["coll"] == "reduce_scatter" else 1) == loop
        memory[rank]["s"] = np.zeros(sizes["s"], np.int64)
        assert [int(tb.attrib["id"]) for tb in gpu] == list(range(len(gpu)))
        used: set[tuple[str, str]] = set()
        for tb in gpu:
            peers = {("send", tb.attrib["send"]), ("recv", tb.attrib["recv"])} - {("send", "-1"), ("recv", "-1")}
            assert not peers & used, "two threadblocks share a connection"
            assert str(rank) not in {peer for _, peer in peers}
            used |= peers
            steps = [dict(step.attrib) for step in tb]
            assert [int(step["s"]) for step in steps] == list(range(len(steps)))
            assert len(steps) <= 256
            for step, after in zip(steps, [*steps[1:], None], strict=True):
                assert all(int(step["cnt"]) < 72 and step[f"{end}buf"] in "ios" for end in ("src", "dst"))
                if step["type"] == "nop":  # the runtime wants a step with a dependence right behind
                    assert int((after or {"depid": "-1"})["depid"]) >= 0
            tag = int(tb.attrib["id"])
            blocks[rank, tag] = Block(rank, int(tb.attrib["send"]), int(tb.attrib["recv"]), steps, 0, memory[rank])
    for (rank, _), block in blocks.items():
        for step in block.steps:
            if int(step["depid"]) >= 0:
                assert blocks[rank, int(step["depid"])].steps[int(step["deps"])]["hasdep"] == "1"
    return blocks


def run_msccl(blocks: dict[tuple[int, int], Block], seed: int) -> None:
    """Run the threadblocks in a random order, each connection holding one message; raise where they get stuck."""
    dice = random.Random(seed)
    wires: Wires = defaultdict(deque)
    waiting = list(blocks.values())
    while waiting:
        dice.shuffle(waiting)
        ready = [block for block in waiting if block.at < len(block.steps) and _goes_on(block, blocks, wires)]
        waiting = [block for block in waiting if block.at < len(block.steps)]
        assert ready or not waiting, "the threadblocks wait for each other"
    assert not any(wires.values())


def _goes_on(block: Block, blocks: dict[tuple[int, int], Block], wires: Wires) -> bool:
    """Do the next step of a threadblock if it can be done."""
    step = block.steps[block.at]
    kind, count = step["type"], int(step["cnt"])
    depends, at = int(step["depid"]), int(step["deps"])
    if depends >= 0 and blocks[block.gpu, depends].at <= at:
        return False
    out, into = (wires[block.gpu, block.send], wires[block.recv, block.gpu])
    if (kind == "s" and out) or (kind in ("r", "rrc") and not into):
        return False
    source = _slice(block, step, "src", 0 if kind == "r" else count)  # there it is the sender's place
    target = _slice(block, step, "dst", 0 if kind == "s" else count)
    if kind == "s":
        out.append(source.copy())
    elif kind == "r":
        target[:] = into.popleft()
    elif kind == "rrc":
        target[:] = source + into.popleft()
    elif kind == "cpy":
        target[:] = source
    elif kind == "re":
        target += source
    else:
        assert kind == "nop"
    block.at += 1
    return True


def _slice(block: Block, step: dict[str, str], end: str, count: int) -> np.ndarray:
    first = int(step[f"{end}off"])
    if first < 0 or not count:
        return np.zeros(0, np.int64)
    assert first + count <= len(block.bufs[step[f"{end}buf"]])
    return block.bufs[step[f"{end}buf"]][first : first + count]
