"""Reader of MSCCL++ execution plans (JSON), as its executor loads them.

Operations of a thread block put data into buffers of other ranks, get data from these buffers, reduce, and signal. A
wait counts the signals of one channel; the nth channel of a rank to a peer is connected to the nth channel of this peer
to the rank. Packets carry flags: the reader of a packet waits for its flag. A pipeline (a loop of operations) is read
as a single iteration. A switch (multimem) operation reduces or stores on all ranks of its group. A chunk is cut into
pieces where a group of thread blocks shares an operation. Relaxed signals order steps like other signals.

Source: microsoft/mscclpp, src/core/executor/execution_plan.cc and src/core/include/execution_kernel.hpp.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.operation import Operation
from hpccoll.plan.published.block_program import (
    INPUT,
    MOST_CELLS,
    OUTPUT,
    SCRATCH,
    BlockProgram,
    BlockStep,
    Cell,
    CollectiveCells,
    Effect,
    Post,
    Semaphore,
    SemaphoreWait,
)

COLLECTIVES = {
    "allreduce": Operation.ALL_REDUCE,
    "allgather": Operation.ALL_GATHER,
    "reducescatter": Operation.REDUCE_SCATTER,
    "alltoall": Operation.ALL_TO_ALL,
}
REDUCTIONS = ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt")
COPIES = ("put", "pws", "pwsf", "get", "copy", "ppkt", "rppkt", "cpkt", "upkt")
SWITCHED = ("glres", "gstore")
SIGNALS, WAITS = ("signal", "rlxsignal", "pws", "pwsf"), ("wait", "rlxwait")
READS_PACKETS = ("rppkt", "upkt", "repkt", "respkt", "recpkt", "recspkt")
WRITES_PACKETS = ("ppkt", "rppkt", "cpkt", "respkt", "recpkt", "recspkt")


def parse_mscclpp(document: dict[str, Any], name: str) -> BlockProgram:
    """Return the program of an MSCCL++ execution plan, without proving it; error messages call the file `name`.

    A missing or wrong value raises KeyError, TypeError, AttributeError, IndexError or ValueError.

    Raises:
        UsageError: an operation or collective is unknown.
        PlanError: an operation names a chunk, buffer or channel that does not exist.
    """
    return _MscclppReader(name, document).read()


class _MscclppReader:
    """Reads one MSCCL++ execution plan; `name` stands for the file in errors, and `document` is its parsed JSON."""

    def __init__(self, name: str, document: dict[str, Any]) -> None:
        self.name, self.document, self.gpus = name, document, document["gpus"]
        self.n = len(self.gpus)
        if document["collective"] not in COLLECTIVES:
            valid = ", ".join(COLLECTIVES)
            raise UsageError(f"{name}: collective is {document['collective']!r}; hpccoll reads {valid}")
        if [gpu["id"] for gpu in self.gpus] != list(range(self.n)):
            raise UsageError(f"{name}: the ids of gpus must be 0 to {self.n - 1}, in order")
        self.operation = COLLECTIVES[document["collective"]]
        groups = {op["tbg_info"]["tbg_size"] for op in self.list_operations() if "tbg_info" in op}
        self.pieces = math.lcm(*groups) if groups else 1
        chunks = self.gpus[0]["input_chunks"]
        per = chunks // self.n if self.operation in (Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL) else chunks
        self.cells = CollectiveCells(self.operation, self.n, per * self.pieces, bool(document["inplace"]))
        self.channels = [self.list_channels(gpu) for gpu in self.gpus]
        self.transfers = 0

    def list_operations(self) -> Iterator[dict[str, Any]]:
        """Yield all operations of all thread blocks; in place of a pipeline, yield the operations inside it."""
        for gpu in self.gpus:
            for block in gpu["threadblocks"]:
                yield from _flatten(block["ops"])

    def list_channels(self, gpu: dict[str, Any]) -> dict[str, list[Any]]:
        """Return the channels of the rank `gpu` by type.

        A switch channel is a pair (buffer, ranks of its group). Other channels are pairs (peer, number of the channel
        among those of the same type to this peer).
        """
        channels: dict[str, list[Any]] = {}
        seen: Counter[tuple[str, int]] = Counter()
        for entry in gpu["channels"]:
            kind = entry["channel_type"]
            listed = channels.setdefault(kind, [])
            if kind == "switch":
                buffer = entry.get("buffer_type", entry.get("buff"))
                listed += [(buffer, group["ranks"]) for group in entry["rank_groups"]]
                continue
            for peer in entry["connected_to"]:
                listed.append((peer, seen[kind, peer]))
                seen[kind, peer] += 1
        return channels

    def read(self) -> BlockProgram:
        """Return the program of the whole file."""
        cells = self.cells
        blocks = tuple(_BlockReader(self, gpu, block).read() for gpu in self.gpus for block in gpu["threadblocks"])
        return BlockProgram(
            str(self.document["name"]), "MSCCL++", self.operation, self.n, cells.chunks, blocks,
            cells.list_inputs(), cells.list_outputs(), cells.list_homes(), cells.plan_chunks, self.transfers,
        )  # fmt: skip


class _BlockReader:
    """Reads the operations of one thread block: `block` is its parsed JSON, and `gpu` the parsed JSON of its rank."""

    def __init__(self, file: _MscclppReader, gpu: dict[str, Any], block: dict[str, Any]) -> None:
        self.file, self.gpu, self.block, self.rank = file, gpu, block, int(gpu["id"])
        self.waited: Counter[Semaphore] = Counter()
        self.own_channels: dict[str, list[int]] = {}
        for entry in block["channels"]:
            self.own_channels.setdefault(entry["channel_type"], []).extend(entry["channel_ids"])
        self.remote: dict[str, list[int]] = {}
        for entry in block.get("remote_buffer_refs", ()):
            self.remote.setdefault(entry["access_channel_type"], []).extend(entry["remote_buffer_ids"])

    def read(self) -> tuple[BlockStep, ...]:
        """Return the steps of the thread block."""
        steps: list[BlockStep] = []
        for index, op in enumerate(_flatten(self.block["ops"])):
            steps += self.read_operation(index, op)
        return tuple(steps)

    def read_operation(self, index: int, op: dict[str, Any]) -> list[BlockStep]:
        """Return the steps of operation `op`, number `index` of the thread block: one step, or two for a barrier."""
        kind = op["name"]
        words = f"{kind} {_format_buffers(op)}".rstrip()
        place = (self.rank, int(self.block["id"]), index, words)
        if kind == "barrier":
            semaphore: Semaphore = ("barrier", self.rank, op["barrier_id"])
            self.waited[semaphore] += 1
            count = self.waited[semaphore] * op["num_threadblocks"]
            return [BlockStep(*place, posts=(Post(semaphore),)),
                    BlockStep(*place, waits=(SemaphoreWait(semaphore, count, is_counted=True),))]  # fmt: skip
        posts, waits = self.read_signals(kind, op)
        effects: list[Effect] = []
        if kind in COPIES or kind in REDUCTIONS:
            effects = self.read_transfer(kind, op, place)
        elif kind in SWITCHED:
            effects = self.read_switch(kind, op, place)
        elif kind not in (*SIGNALS, *WAITS, "nop", "flush", "sem_acquire", "sem_release"):
            raise UsageError(
                f"{self.file.name}: rank {self.rank} has the operation {kind!r}, which hpccoll cannot read"
            )
        if kind in READS_PACKETS:
            first = 0 if kind in ("rppkt", "upkt") else 1
            waits += [
                SemaphoreWait(("packet", *cell), 1, is_counted=True)
                for cell in self.list_packets(op, "src_buff", first)
            ]
        if kind in WRITES_PACKETS:
            first = 1 if kind in ("respkt", "recpkt", "recspkt") else 0
            posts += [Post(("packet", *cell)) for cell in self.list_packets(op, "dst_buff", first)]
        return [BlockStep(*place, tuple(effects), tuple(waits), tuple(posts))]

    def list_packets(self, op: dict[str, Any], key: str, first: int) -> list[Cell]:
        """Return the cells of the packet buffers of `op`: those listed under `key`, from list index `first` on."""
        place = (self.rank, int(self.block["id"]), 0, op["name"])
        return [cell for buffer in op[key][first:] for cell in self.list_cells(buffer, op, place)]

    def read_signals(self, kind: str, op: dict[str, Any]) -> tuple[list[Post], list[SemaphoreWait]]:
        """Return two lists: the posts (signals to semaphores) and the waits of operation `op` of type `kind`."""
        posts: list[Post] = []
        waits: list[SemaphoreWait] = []
        if kind in SIGNALS:
            posts += [Post(self.find_signal(op, channel, outgoing=True)) for channel in op["channel_ids"]]
        if kind in WAITS:
            waits += [
                self.wait_again(self.find_signal(op, channel, outgoing=False), 0) for channel in op["channel_ids"]
            ]
        for number in op.get("semaphore_ids", ()):
            semaphore: Semaphore = ("semaphore", self.rank, number)
            if kind == "sem_release":
                posts.append(Post(semaphore))
            elif kind == "sem_acquire":
                waits.append(self.wait_again(semaphore, int(self.gpu["semaphores"][number]["init_value"])))
        return posts, waits

    def wait_again(self, semaphore: Semaphore, start: int) -> SemaphoreWait:
        """Return this thread block's next wait for a semaphore; each wait needs one signal more than the one before.

        `start` is the semaphore's initial value.
        """
        self.waited[semaphore] += 1
        return SemaphoreWait(semaphore, self.waited[semaphore] - start, is_counted=True)

    def find_signal(self, op: dict[str, Any], channel: int, *, outgoing: bool) -> Semaphore:
        """Return the semaphore of a channel: the peer's if `outgoing` (for a signal), else this rank's (for a wait).

        `channel` is the number of the channel in this thread block's list.
        """
        kind = op["channel_type"]
        peer, number = self.file.channels[self.rank][kind][self.own_channels[kind][channel]]
        ends = (self.rank, peer) if outgoing else (peer, self.rank)
        return ("signal", kind, *ends, number)

    def read_transfer(self, kind: str, op: dict[str, Any], place: tuple[int, int, int, str]) -> list[Effect]:
        """Return the copies or sums of operation `op` of type `kind`; `place` names the operation in error messages.

        Adds the number of transfers between ranks to `file.transfers`. `place` is as in `read_switch`.
        """
        sources = [self.list_cells(buffer, op, place) for buffer in op["src_buff"]]
        targets = [self.list_cells(buffer, op, place) for buffer in op["dst_buff"]]
        if kind in COPIES:
            if len(sources) == 1:
                sources *= len(targets)
            if [len(cells) for cells in sources] != [len(cells) for cells in targets]:
                raise self.error(place, "has sources and targets of different sizes")
            pairs = [pair for ends in zip(targets, sources, strict=True) for pair in zip(*ends, strict=True)]
            effects = [Effect(target, (source,)) for target, source in pairs]
        else:
            if len({len(cells) for cells in (*sources, *targets)}) > 1:
                raise self.error(place, "reduces buffers of different sizes")
            sums = [Effect(target, parts) for target, parts in zip(targets[0], zip(*sources, strict=True), strict=True)]
            again = [
                Effect(target, (kept,)) for cells in targets[1:] for target, kept in zip(cells, targets[0], strict=True)
            ]
            effects = sums + again
        self.file.transfers += sum(effect.target[0] != part[0] for effect in effects for part in effect.sources)
        return effects

    def read_switch(self, kind: str, op: dict[str, Any], place: tuple[int, int, int, str]) -> list[Effect]:
        """Return the copies or sums of a switch (multimem) operation, which accesses a buffer on all ranks of a group.

        A store (`gstore`) copies this rank's cells to all ranks of the group. A reduction (`glres`) sums the cells of
        all ranks, and copies the sums to all ranks. Adds the number of transfers between ranks to `file.transfers`.
        `place` (rank, thread block, index of the operation, its text) names the operation in error messages.
        """
        effects = []
        for source, target in zip(op["src_buff"], op["dst_buff"], strict=True):
            into = self.list_switched(target, op, place)
            if kind == "gstore":
                own = self.list_cells(source, op, place)
                effects += [Effect(cell, (part,)) for cells in into for cell, part in zip(cells, own, strict=True)]
                continue
            parts = self.list_switched(source, op, place)
            first = next((k for k, cells in enumerate(into) if cells and cells[0][0] == self.rank), 0)
            effects += [Effect(cell, terms) for cell, terms in zip(into[first], zip(*parts, strict=True), strict=True)]
            others = [cells for k, cells in enumerate(into) if k != first]
            effects += [
                Effect(cell, (kept,)) for cells in others for cell, kept in zip(cells, into[first], strict=True)
            ]
        self.file.transfers += sum(effect.target[0] != part[0] for effect in effects for part in effect.sources)
        return effects

    def list_switched(
        self, buffer: dict[str, Any], op: dict[str, Any], place: tuple[int, int, int, str]
    ) -> list[list[Cell]]:
        """Return the cells of `buffer` on each rank of a switch channel's group; `place` serves error messages."""
        number = self.own_channels["switch"][buffer["switch_channel_id"]]
        kind, ranks = self.file.channels[self.rank]["switch"][number]
        return [self.cut(rank, kind, buffer, op, place) for rank in ranks]

    def list_cells(self, buffer: dict[str, Any], op: dict[str, Any], place: tuple[int, int, int, str]) -> list[Cell]:
        """Return the cells of a buffer of operation `op`, on this rank or another; `place` serves error messages."""
        if "buffer_id" in buffer:
            number = self.remote[op["channel_type"]][buffer["buffer_id"]]
            remote = self.gpu["remote_buffers"][number]
            return self.cut(int(remote["rank"]), remote["type"], buffer, op, place)
        return self.cut(self.rank, buffer["type"], buffer, op, place)

    def cut(
        self, rank: int, kind: str, buffer: dict[str, Any], op: dict[str, Any], place: tuple[int, int, int, str]
    ) -> list[Cell]:
        """Return the cells of this thread block's share of a buffer, which a group of thread blocks may divide.

        `rank` owns the buffer, `kind` is its name (i, o or s), and `place` serves error messages.
        """
        names = {INPUT: "input_chunks", OUTPUT: "output_chunks", SCRATCH: "scratch_chunks"}
        pieces, size = self.file.pieces, self.file.gpus[rank][names[kind]]
        first, count = buffer["index"] * pieces, buffer["size"] * pieces
        shared = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        begin = first + count * shared["tb_id"] // shared["tbg_size"]
        end = first + count * (shared["tb_id"] + 1) // shared["tbg_size"]
        if first < 0 or first + count > min(size * pieces, MOST_CELLS):
            raise self.error(place, f"uses {kind}[{buffer['index']}] of rank {rank}, which has {size} chunks")
        return [self.file.cells.locate(rank, kind, index) for index in range(begin, end)]

    def error(self, place: tuple[int, int, int, str], why: str) -> PlanError:
        """Return an unraised error that names the operation at `place` (rank, thread block, number, words)."""
        return PlanError(f"{self.file.name}: {BlockStep(*place).describe()} {why}")


def _flatten(ops: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the operations `ops`; in place of a pipeline, yield the operations inside it."""
    for op in ops:
        if op["name"] == "pipeline":
            yield from _flatten(op["ops"])
        else:
            yield op


def _format_buffers(op: dict[str, Any]) -> str:
    """Return the first source and the first target of an operation, such as `i[0] -> remote 1[0]`."""
    ends = []
    for key in ("src_buff", "dst_buff"):
        if op.get(key):
            buffer = op[key][0]
            remote = buffer.get("buffer_id", buffer.get("switch_channel_id"))
            ends.append(f"{buffer.get('type', f'remote {remote}')}[{buffer['index']}]")
    return " -> ".join(ends)
