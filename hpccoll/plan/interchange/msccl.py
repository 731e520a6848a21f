"""A plan as an MSCCL algorithm file, the XML that the MSCCL runtime for NCCL and RCCL loads.

Every rank becomes a `gpu`; for each peer that it sends to or receives from it has a threadblock, and one more for what
it does alone. Steps of a threadblock run in order, those of different ones only as `depid`/`deps` say; so each step
waits for the last ones that wrote what it reads, or touched what it writes. A message that lands on what the same
round still sends goes to scratch first and is copied or reduced from there after that send: both ends of an exchange
can then send at once, however little the connection buffers.

Where chunks live: `i` and `o` are one memory (inplace="1") except for all_to_all, whose work space beyond the two is
scratch; a reduce works in scratch on all ranks but the root, so that their input stays as it is. The operand order
of reductions cannot be said in this format: MSCCL chooses it. Loads and stores become messages, whose ends wait for
each other, so that their fences are left out.

Source: the reader of microsoft/msccl (its attributes, step types and limits) and msccl-tools (Cowan et al., "MSCCLang",
ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from hpccoll.errors import UsageError
from hpccoll.plan.interchange.messages import Message, messages
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import Op

MOST_STEPS, MOST_PEERS, MOST_COUNT = 256, 32, 71  # of a threadblock; in each direction; chunks of one step
MOST_BYTES = 2**40  # messages up to which the runtime may choose the file
COLLECTIVES = {
    Operation.ALL_REDUCE: "allreduce",
    Operation.ALL_GATHER: "allgather",
    Operation.REDUCE_SCATTER: "reduce_scatter",
    Operation.BROADCAST: "broadcast",
    Operation.REDUCE: "reduce",
    Operation.ALL_TO_ALL: "alltoall",
}
ALONE = -1
Cell = tuple[str, int]


def to_msccl(plan: Plan) -> str:
    """Return `plan` as MSCCL XML.

    Raises:
        UsageError: MSCCL has no such collective, or the plan is beyond what its runtime takes (names the limit).

    Cost: O(chunks moved) time and memory.
    """
    if plan.operation not in COLLECTIVES:
        valid = ", ".join(f"{op.value}" for op in COLLECTIVES)
        raise UsageError(f"MSCCL has no {plan.operation.value}; it has {valid}. Write {plan.name} as .json or .goal")
    chunks = plan.moves().chunks
    gpus = [_Gpu(rank, plan, chunks) for rank in range(plan.ranks)]
    for listed in messages(plan):
        _round(gpus, listed)
    message = plan.operation.message_chunks(plan.ranks, chunks)
    top = {"name": plan.algorithm, "proto": "Simple", "nchannels": "1", "nchunksperloop": str(message)}
    top |= {"ngpus": str(plan.ranks), "coll": COLLECTIVES[plan.operation]}
    in_place = plan.operation is not Operation.ALL_TO_ALL
    # The first runtime does not ask for the last three, its successors in RCCL and msccl-executor-nccl do.
    top |= {"inplace": str(int(in_place)), "outofplace": str(int(not in_place))}
    top |= {"minBytes": "0", "maxBytes": str(MOST_BYTES)}
    algo = ET.Element("algo", top)
    algo.extend([gpu.element() for gpu in gpus])
    ET.indent(algo)
    return ET.tostring(algo, encoding="unicode") + "\n"


def _round(gpus: list[_Gpu], listed: list[Message]) -> None:
    """Write a round: first all that it reads, then what lands, then what waited in scratch for the reading to end."""
    for gpu in gpus:
        gpu.reading.clear()
    pieces = [(message, piece) for message in listed for piece in _pieces(gpus, message)]
    sent = []
    for message, (out, _, count) in pieces:
        local = message.source == message.dest
        sent.append(None if local else gpus[message.source].add("s", message.dest, out, None, count))
        gpus[message.source].reading |= set(_cells(out, count))
    late = []
    for (message, (out, into, count)), send in zip(pieces, sent, strict=True):
        gpu = gpus[message.dest]
        kind = "cpy" if message.op is Op.COPY else "re"
        landing, local = set(_cells(into, count)), message.source == message.dest
        if gpu.reading.isdisjoint(landing):
            arrives = "cpy" if local else "r" if message.op is Op.COPY else "rrc"
            landed = gpu.add(arrives, message.source, out if local else into, into, count)
            gpu.reading |= landing  # a second message for the same chunks lands after the first
        else:
            staged = gpu.stage(count)
            landed = gpu.add("cpy" if local else "r", message.source, out if local else staged, staged, count)
            late.append((gpu, kind, staged, into, count))
        if send is not None:
            send.far, landed.far = landed.target, out
    for gpu, kind, staged, into, count in late:
        gpu.add(kind, ALONE, staged, into, count)
    for gpu in gpus:
        gpu.staged = 0


def _pieces(gpus: list[_Gpu], message: Message) -> Iterator[tuple[Cell, Cell, int]]:
    """Cut a message where either end is not in one piece, or is longer than a step may be."""
    out = [gpus[message.source].cell(chunk) for chunk in message.send]
    into = [gpus[message.dest].cell(chunk) for chunk in message.recv]
    first = 0
    for at in range(1, len(out) + 1):
        goes_on = at < len(out) and at - first < MOST_COUNT
        if goes_on and out[at] == _after(out[at - 1]) and into[at] == _after(into[at - 1]):
            continue
        yield out[first], into[first], at - first
        first = at


def _after(cell: Cell) -> Cell:
    return cell[0], cell[1] + 1


def _cells(start: Cell, count: int) -> list[Cell]:
    return [(start[0], start[1] + i) for i in range(count)]


@dataclass(eq=False, slots=True)
class _Step:
    block: int
    kind: str
    source: Cell | None
    target: Cell | None
    count: int
    index: int
    waits: list[_Step]
    waited: bool = False
    far: Cell | None = None  # where the message lands, or is from; only for readers of the file


@dataclass(slots=True)
class _Block:
    send: int
    recv: int
    steps: list[_Step] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)  # up to which step of other threadblocks it has waited


class _Gpu:
    """The threadblocks of one rank, and who touched each of its chunks last."""

    def __init__(self, rank: int, plan: Plan, chunks: int) -> None:
        self.rank, self.plan, self.chunks = rank, plan, chunks
        self.blocks: dict[tuple[int, int], int] = {}
        self.listed: list[_Block] = []
        self.wrote: dict[Cell, _Step] = {}
        self.read: dict[Cell, list[_Step]] = {}
        self.reading: set[Cell] = set()
        # A reduce that is not the root's works beside its input, which it must not change.
        self.beside = plan.operation is Operation.REDUCE and rank != plan.root
        self.scratch = chunks if self.beside else max(chunks - 2 * plan.ranks, 0) * self.blocked
        self.base, self.staged = self.scratch, 0
        if self.beside:
            for first in range(0, chunks, MOST_COUNT):
                self.add("cpy", ALONE, ("i", first), ("s", first), min(MOST_COUNT, chunks - first))

    @property
    def blocked(self) -> bool:
        """Whether input and output are two memories."""
        return self.plan.operation is Operation.ALL_TO_ALL

    def cell(self, chunk: int) -> Cell:
        """Return where a chunk of the plan lives."""
        n = self.plan.ranks
        if self.beside:
            return "s", chunk
        if self.blocked:
            return (("i", chunk), ("o", chunk - n), ("s", chunk - 2 * n))[min(chunk // n, 2)]
        return ("i" if self.plan.operation is Operation.REDUCE_SCATTER else "o"), chunk

    def stage(self, count: int) -> Cell:
        """Return scratch for `count` chunks that is free until the end of the round."""
        cell = "s", self.base + self.staged
        self.staged += count
        self.scratch = max(self.scratch, self.base + self.staged)
        return cell

    def block(self, kind: str, peer: int) -> int:
        key = (peer if kind == "s" else -1, peer if kind in ("r", "rrc") else -1)
        if key not in self.blocks:
            self.blocks[key] = len(self.listed)
            self.listed.append(_Block(*key))
        return self.blocks[key]

    def add(self, kind: str, peer: int, source: Cell, target: Cell | None, count: int) -> _Step:
        """Append a step, which waits for the last ones that wrote what it reads or touched what it writes."""
        at = self.block(kind, peer)
        reads = _cells(source, count) if kind != "r" else []
        reads += _cells(target, count) if target is not None and kind == "re" else []
        writes = _cells(target, count) if target is not None else []
        before = [self.wrote[cell] for cell in (*reads, *writes) if cell in self.wrote]
        before += [step for cell in writes for step in self.read.get(cell, [])]
        last: dict[int, _Step] = {}
        for step in before:
            if step.block != at and (step.block not in last or last[step.block].index < step.index):
                last[step.block] = step
        steps, known = self.listed[at].steps, self.listed[at].known
        waits = [last[block] for block in sorted(last) if known.get(block, -1) < last[block].index]
        for wait in waits[:-1]:  # a step waits for one other only; those before it do nothing else
            steps.append(_Step(at, "nop", None, None, 0, len(steps), [wait]))
        step = _Step(at, kind, source, target, count, len(steps), waits[-1:])
        steps.append(step)
        for wait in waits:
            wait.waited, known[wait.block] = True, wait.index
        for cell in reads:
            self.read.setdefault(cell, []).append(step)
        for cell in writes:
            self.wrote[cell], self.read[cell] = step, []
        return step

    def element(self) -> ET.Element:
        """Return the `gpu` element."""
        n, operation = self.plan.ranks, self.plan.operation
        message = operation.message_chunks(n, self.chunks)
        sizes = {"i_chunks": message // (n if operation is Operation.ALL_GATHER else 1)}
        sizes["o_chunks"] = message // (n if operation is Operation.REDUCE_SCATTER else 1)
        sizes["s_chunks"] = self.scratch
        gpu = ET.Element("gpu", {"id": str(self.rank)} | {key: str(size) for key, size in sizes.items()})
        self.refuse_beyond_limits()
        for at, block in enumerate(self.listed):
            peers = {"send": str(block.send), "recv": str(block.recv), "chan": "0"}
            tb = ET.SubElement(gpu, "tb", {"id": str(at)} | peers)
            for step in block.steps:
                ET.SubElement(tb, "step", _attributes(step))
        return gpu

    def refuse_beyond_limits(self) -> None:
        longest = max((len(block.steps) for block in self.listed), default=0)
        where = f"{self.plan.name} on {self.plan.ranks} ranks: rank {self.rank}"
        remedy = "export fewer ranks or --chunks, or write .json or .goal"
        if longest > MOST_STEPS:
            raise UsageError(f"{where} has a threadblock of {longest} steps; MSCCL takes {MOST_STEPS}: {remedy}")
        peers = max(sum(block.send >= 0 for block in self.listed), sum(block.recv >= 0 for block in self.listed))
        if peers > MOST_PEERS:
            raise UsageError(f"{where} has {peers} peers in one direction; MSCCL takes {MOST_PEERS}: {remedy}")


def _attributes(step: _Step) -> dict[str, str]:
    source = (step.far if step.kind == "r" else step.source) or ("i", -1)
    target = (step.far if step.kind == "s" else step.target) or ("o", -1)
    wait = step.waits[0] if step.waits else None
    return {
        "s": str(step.index),
        "type": step.kind,
        "srcbuf": source[0],
        "srcoff": str(source[1]),
        "dstbuf": target[0],
        "dstoff": str(target[1]),
        "cnt": str(step.count),
        "depid": str(wait.block if wait else -1),
        "deps": str(wait.index if wait else -1),
        "hasdep": str(int(step.waited)),
    }
