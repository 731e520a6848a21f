"""Export of a plan as an MSCCL algorithm file, the XML that the MSCCL runtime for NCCL and RCCL loads.

Every rank becomes a `gpu` element with one threadblock per peer and direction, and one threadblock for local steps.
Steps of one threadblock run in order; the attributes `depid` and `deps` order steps of different threadblocks. A step
waits for the last steps that wrote the chunks it reads, and for the last steps that read or wrote the chunks it writes.
A message that would overwrite chunks that the same round still sends is received into a scratch buffer, and is copied
or reduced from the scratch buffer after the send. Because of the scratch buffer, no receive waits for a send of the
same round, so two ranks that exchange chunks cannot block each other.

The buffers input `i` and output `o` are the same memory (inplace="1"), except in all_to_all, which keeps blocks in
transit in the scratch buffer `s`. In a reduce, all ranks but the root work in the scratch buffer, so that their input
stays unchanged. The format cannot state the operand order of reductions, which the MSCCL runtime chooses. Shared-memory
loads and stores become messages, and fences (barriers) are left out, since both ends of a message wait for each other.

Source: the XML parser of microsoft/msccl (attributes, step types and limits) and msccl-tools (Cowan et al., "MSCCLang",
ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from hpccoll.errors import UsageError
from hpccoll.plan.messages import PlanMessage, list_messages_by_round
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.units import format_count

MOST_STEPS, MOST_PEERS, MOST_COUNT = 256, 32, 71  # steps per threadblock; peers per direction; chunks per step
MOST_BYTES = 2**40  # the largest message for which the runtime may choose the file
COLLECTIVES = {
    Operation.ALL_REDUCE: "allreduce",
    Operation.ALL_GATHER: "allgather",
    Operation.REDUCE_SCATTER: "reducescatter",
    Operation.BROADCAST: "broadcast",
    Operation.REDUCE: "reduce",
    Operation.ALL_TO_ALL: "alltoall",
}
LOCAL = -1  # peer number of steps without a peer
BufferIndex = tuple[str, int]  # buffer (i, o or s) and chunk in it


def to_msccl(plan: Plan) -> str:
    """Return `plan` as XML for MSCCL (Microsoft's runtime of custom GPU collectives).

    Raises UsageError if MSCCL lacks the operation, or the plan exceeds a limit of MSCCL.
    """
    if plan.operation not in COLLECTIVES:
        valid = ", ".join(f"{op.value}" for op in COLLECTIVES)
        raise UsageError(f"MSCCL has no {plan.operation.value}; it has {valid}. Write {plan.name} as .json or .goal")
    chunks = plan.rounds().chunks
    gpus = [_MscclGpu(rank, plan, chunks) for rank in range(plan.ranks)]
    for listed in list_messages_by_round(plan):
        _append_round(gpus, listed)
    message = plan.operation.message_chunks(plan.ranks, chunks)
    top = {"name": plan.algorithm, "proto": "Simple", "nchannels": "1", "nchunksperloop": str(message)}
    top |= {"ngpus": str(plan.ranks), "coll": COLLECTIVES[plan.operation]}
    in_place = plan.operation is not Operation.ALL_TO_ALL
    # MSCCL's first runtime ignores outofplace, minBytes and maxBytes; RCCL and msccl-executor-nccl require them.
    top |= {"inplace": str(int(in_place)), "outofplace": str(int(not in_place))}
    top |= {"minBytes": "0", "maxBytes": str(MOST_BYTES)}
    algo = ET.Element("algo", top)
    algo.extend([gpu.element() for gpu in gpus])
    ET.indent(algo)
    return ET.tostring(algo, encoding="unicode") + "\n"


def _append_round(gpus: list[_MscclGpu], messages: list[PlanMessage]) -> None:
    """Append a round's steps to `gpus` (one per rank): sends, then receives, then copies from scratch buffers."""
    for gpu in gpus:
        gpu.in_use.clear()
    pieces = [(message, piece) for message in messages for piece in _pieces(gpus, message)]
    sends = []
    for message, (source, _, count) in pieces:
        local = message.source == message.dest
        sends.append(None if local else gpus[message.source].add("s", message.dest, source, None, count))
        gpus[message.source].in_use |= set(_indices(source, count))
    from_scratch = []
    for (message, (source, target, count)), send in zip(pieces, sends, strict=True):
        gpu = gpus[message.dest]
        written, local = set(_indices(target, count)), message.source == message.dest
        if gpu.in_use.isdisjoint(written):
            kind = "cpy" if local else "rrc" if message.reduces else "r"
            receive = gpu.add(kind, message.source, source if local else target, target, count)
            gpu.in_use |= written  # a later message for the same chunks must be received after an earlier one
        else:
            scratch, kind = gpu.reserve_scratch(count), "cpy" if local else "r"
            receive = gpu.add(kind, message.source, source if local else scratch, scratch, count)
            from_scratch.append((gpu, "re" if message.reduces else "cpy", scratch, target, count))
        if send is not None:
            send.peer_index, receive.peer_index = receive.target, source
    for gpu, kind, scratch, target, count in from_scratch:
        gpu.add(kind, LOCAL, scratch, target, count)
    for gpu in gpus:
        gpu.staged = 0


def _pieces(gpus: list[_MscclGpu], message: PlanMessage) -> Iterator[tuple[BufferIndex, BufferIndex, int]]:
    """Yield (source index, target index, count) of pieces of a message, each of up to MOST_COUNT contiguous chunks.

    `gpus` has the buffers of each rank, which map chunk numbers to indices in buffers.
    """
    sources = [gpus[message.source].index_of(chunk) for chunk in message.send]
    targets = [gpus[message.dest].index_of(chunk) for chunk in message.recv]
    first = 0
    for end in range(1, len(sources) + 1):
        continues = end < len(sources) and end - first < MOST_COUNT
        if continues and all(ends[end] == (ends[end - 1][0], ends[end - 1][1] + 1) for ends in (sources, targets)):
            continue
        yield sources[first], targets[first], end - first
        first = end


def _indices(start: BufferIndex, count: int) -> list[BufferIndex]:
    """Return `count` consecutive chunks from `start` on, as pairs (buffer, index)."""
    return [(start[0], start[1] + i) for i in range(count)]


@dataclass(eq=False, slots=True)
class _MscclStep:
    """A step of a threadblock; `kind` is s(end), r(eceive), rrc (receive, reduce, copy), re(duce), cpy or nop."""

    block: int
    kind: str
    source: BufferIndex | None
    target: BufferIndex | None
    count: int
    index: int
    waits: list[_MscclStep]
    waited: bool = False
    peer_index: BufferIndex | None = None  # the peer's end of the message, for people; the runtime ignores it


@dataclass(slots=True)
class _Threadblock:
    """A thread block of an MSCCL file, with the one peer it sends to and the one it receives from (-1: none)."""

    send: int
    recv: int
    steps: list[_MscclStep] = field(default_factory=list)
    waited_for: dict[int, int] = field(default_factory=dict)  # for each other threadblock, the last step waited for


class _MscclGpu:
    """The thread blocks of one rank of an MSCCL file, and the last steps that read and wrote each of its chunks."""

    def __init__(self, rank: int, plan: Plan, chunks: int) -> None:
        self.rank, self.plan, self.chunks = rank, plan, chunks
        self.blocks: dict[tuple[int, int], int] = {}
        self.threadblocks: list[_Threadblock] = []
        self.last_write: dict[BufferIndex, _MscclStep] = {}
        self.last_reads: dict[BufferIndex, list[_MscclStep]] = {}
        self.in_use: set[BufferIndex] = set()
        # A rank other than the root of a reduce must not change its input, so it works on a copy in the scratch buffer.
        self.copies_input = plan.operation is Operation.REDUCE and rank != plan.root
        self.scratch = chunks if self.copies_input else max(chunks - 2 * plan.ranks, 0) * self.is_all_to_all
        self.base, self.staged = self.scratch, 0
        if self.copies_input:
            for first in range(0, chunks, MOST_COUNT):
                self.add("cpy", LOCAL, ("i", first), ("s", first), min(MOST_COUNT, chunks - first))

    @property
    def is_all_to_all(self) -> bool:
        """Whether the operation is an all-to-all, whose input and output are separate buffers."""
        return self.plan.operation is Operation.ALL_TO_ALL

    def index_of(self, chunk: int) -> BufferIndex:
        """Return the MSCCL buffer and index (a pair) that hold chunk `chunk` of the plan."""
        n = self.plan.ranks
        if self.copies_input:
            return "s", chunk
        if self.is_all_to_all:
            return (("i", chunk), ("o", chunk - n), ("s", chunk - 2 * n))[min(chunk // n, 2)]
        return ("i" if self.plan.operation is Operation.REDUCE_SCATTER else "o"), chunk

    def reserve_scratch(self, count: int) -> BufferIndex:
        """Reserve `count` chunks of the scratch buffer until the end of the round.

        Return the first reserved chunk as (buffer, index).
        """
        cell = "s", self.base + self.staged
        self.staged += count
        self.scratch = max(self.scratch, self.base + self.staged)
        return cell

    def get_block(self, kind: str, peer: int) -> int:
        """Return the index of the thread block for steps of type `kind` with `peer`; create it if needed."""
        key = (peer if kind == "s" else -1, peer if kind in ("r", "rrc") else -1)
        if key not in self.blocks:
            self.blocks[key] = len(self.threadblocks)
            self.threadblocks.append(_Threadblock(*key))
        return self.blocks[key]

    def add(self, kind: str, peer: int, source: BufferIndex, target: BufferIndex | None, count: int) -> _MscclStep:
        """Append a step to the thread block for its type and peer, and return the step.

        The step waits for earlier steps of other thread blocks that wrote its chunks or read the chunks that it writes.

        Args:
            kind: the MSCCL type of the step, such as `s` (send) or `re` (reduce).
            peer: the other rank of a message, or LOCAL.
            source: the buffer and index of the first chunk that the step reads.
            target: the buffer and index of the first chunk that the step writes; None for a send.
        """
        at = self.get_block(kind, peer)
        reads = _indices(source, count) if kind != "r" else []
        reads += _indices(target, count) if target is not None and kind == "re" else []
        writes = _indices(target, count) if target is not None else []
        before = [self.last_write[cell] for cell in (*reads, *writes) if cell in self.last_write]
        before += [step for cell in writes for step in self.last_reads.get(cell, [])]
        last: dict[int, _MscclStep] = {}
        for step in before:
            if step.block != at and (step.block not in last or last[step.block].index < step.index):
                last[step.block] = step
        steps, waited_for = self.threadblocks[at].steps, self.threadblocks[at].waited_for
        waits = [last[block] for block in sorted(last) if waited_for.get(block, -1) < last[block].index]
        for wait in waits[:-1]:  # a step can wait for only one other step, so each additional wait needs a `nop` step
            steps.append(_MscclStep(at, "nop", None, None, 0, len(steps), [wait]))
        step = _MscclStep(at, kind, source, target, count, len(steps), waits[-1:])
        steps.append(step)
        for wait in waits:
            wait.waited, waited_for[wait.block] = True, wait.index
        for cell in reads:
            self.last_reads.setdefault(cell, []).append(step)
        for cell in writes:
            self.last_write[cell], self.last_reads[cell] = step, []
        return step

    def element(self) -> ET.Element:
        """Return the XML element `gpu` of this rank; raise UsageError if it exceeds a limit of MSCCL."""
        n, operation = self.plan.ranks, self.plan.operation
        message = operation.message_chunks(n, self.chunks)
        sizes = {"i_chunks": message // (n if operation is Operation.ALL_GATHER else 1)}
        sizes["o_chunks"] = message // (n if operation is Operation.REDUCE_SCATTER else 1)
        sizes["s_chunks"] = self.scratch
        gpu = ET.Element("gpu", {"id": str(self.rank)} | {key: str(size) for key, size in sizes.items()})
        self.check_limits()
        for at, block in enumerate(self.threadblocks):
            peers = {"send": str(block.send), "recv": str(block.recv), "chan": "0"}
            tb = ET.SubElement(gpu, "tb", {"id": str(at)} | peers)
            for step in block.steps:
                ET.SubElement(tb, "step", _attributes(step))
        return gpu

    def check_limits(self) -> None:
        """Raise UsageError if a block has over MOST_STEPS steps, or the rank over MOST_PEERS peers per direction."""
        longest = max((len(block.steps) for block in self.threadblocks), default=0)
        where = f"{self.plan.name} on {format_count(self.plan.ranks, 'rank')}: rank {self.rank}"
        remedy = "export fewer ranks or --chunks, or write .json or .goal"
        if longest > MOST_STEPS:
            raise UsageError(f"{where} has a threadblock of {longest} steps; MSCCL takes {MOST_STEPS}: {remedy}")
        peers = max(sum(peer >= 0 for peer in side) for side in zip(*self.blocks, strict=True)) if self.blocks else 0
        if peers > MOST_PEERS:
            raise UsageError(f"{where} has {peers} peers in one direction; MSCCL takes {MOST_PEERS}: {remedy}")


def _attributes(step: _MscclStep) -> dict[str, str]:
    """Return the XML attributes of a step by name."""
    source = (step.peer_index if step.kind == "r" else step.source) or ("i", -1)
    target = (step.peer_index if step.kind == "s" else step.target) or ("o", -1)
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
