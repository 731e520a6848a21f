"""Compare hpccoll's executables with hand-written mpi4py loops of the same algorithms, and with the MPI library.

The loops call Sendrecv and np.add(out=) on views, buffer specifications and scratch that are made once. Each rank
rewrites the message before a single call, as an application does. Small messages are also timed in batches. The script
also measures the cost of a step, of lowering and of binding, and compares a 64 MiB ring with the memory's limit.

    mpirun -n 2 python bench/executables.py --json executables.jsonl
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from compare import Bench, Case, Floats, Must, Side, all_reduce_check, summary_of
from mpi4py import MPI
from script import Result, main

from hpccoll.algorithms import get_algorithm, make_algorithm
from hpccoll.algorithms.ring import all_gather
from hpccoll.lowering import Receive, Send, lower_plan
from hpccoll.plan import IntArray, Operation, Rounds
from hpccoll.records import SCHEMA
from hpccoll.units import KiB, MiB, format_size

Call = Callable[[], object]
Loop = Callable[[MPI.Intracomm, Floats], Call]

BATCHED_TO, BATCH = KiB, 100
BINDINGS = 25
COMPILED_WITHIN_MS = 20.0
EXCHANGES = 100
LARGE = 64 * MiB
EXECUTABLE, MEMORY = "hpccoll executable", "memory alone"


def ring_loop(comm: MPI.Intracomm, x: Floats) -> Call:
    """Return a function that runs a hand-written ring all-reduce of x in place."""
    n, rank = comm.size, comm.rank
    dest, source = (rank + 1) % n, (rank - 1) % n
    chunks = [x[len(x) * c // n : len(x) * (c + 1) // n] for c in range(n)]
    scratch = np.zeros(max(len(chunk) for chunk in chunks), np.float32)
    reduce_steps, gather_steps = [], []
    for s in range(n - 1):
        out, into = chunks[(rank - s - 1) % n], chunks[(rank - s - 2) % n]
        landing = scratch[: len(into)]
        reduce_steps.append(([out, MPI.FLOAT], [landing, MPI.FLOAT], landing, into))
        out, into = chunks[(rank - s) % n], chunks[(rank - s - 1) % n]
        gather_steps.append(([out, MPI.FLOAT], [into, MPI.FLOAT]))

    def loop() -> None:
        for send, receive, landing, into in reduce_steps:
            comm.Sendrecv(send, dest, 0, receive, source, 0)
            np.add(into, landing, out=into)
        for send, receive in gather_steps:
            comm.Sendrecv(send, dest, 0, receive, source, 0)

    return loop


def doubling_loop(comm: MPI.Intracomm, x: Floats) -> Call:
    """Return a function that runs a hand-written recursive-doubling all-reduce of x, on a power of two ranks."""
    scratch = np.zeros_like(x)
    send, receive = [x, MPI.FLOAT], [scratch, MPI.FLOAT]
    peers = [comm.rank ^ (1 << bit) for bit in range(comm.size.bit_length() - 1)]

    def loop() -> None:
        for peer in peers:
            comm.Sendrecv(send, peer, 0, receive, peer, 0)
            np.add(x, scratch, out=x)

    return loop


def algorithms(ranks: int) -> dict[str, Loop]:
    """Return the hand-written loops that work on this number of ranks, by algorithm."""
    loops: dict[str, Loop] = {"ring": ring_loop, "recursive_doubling": doubling_loop}
    return loops if ranks & (ranks - 1) == 0 else {"ring": ring_loop}


def measure(bench: Bench) -> Iterator[Result]:
    """Yield all cases and records of this script."""
    for nbytes in bench.sizes:
        x = np.zeros(max(nbytes // 4, 1), np.float32)
        for name, loop in algorithms(bench.comm.size).items():
            yield compiled(bench, name, len(x))
            executable = bench.own.all_reduce_init(x, algorithm=name)
            for batch in (1, BATCH) if nbytes <= BATCHED_TO else (1,):
                case = all_reduce_case(bench, name, (loop(bench.comm, x), loop(bench.comm, x)), x, executable)
                case.batch, case.before = batch, partial(x.fill, 0) if batch == 1 else None
                yield bench.run(case)
                if name == "ring" and nbytes >= LARGE:
                    yield floor(bench, case)
            executable.free()
    if bench.comm.size > 1:
        case, requests = steps_case(bench)
        yield bench.run(case)
        for request in requests:
            request.Free()


def all_reduce_case(bench: Bench, name: str, loops: tuple[Call, Call], x: Floats, executable: Call) -> Case:
    """Return the case of two loops, the executable, the MPI library and, for a large ring, bare memory accesses."""
    comm = bench.comm
    musts = [Must("no slower than the loop", "loop")]
    sides = [
        Side("loop", loops[0]),
        Side("loop again (A/A)", loops[1]),
        Side("MPI library", partial(comm.Allreduce, MPI.IN_PLACE, [x, MPI.FLOAT], MPI.SUM)),
    ]
    if name == "ring" and x.nbytes >= LARGE:
        sides.append(Side(MEMORY, memory(x, comm.size), checked=False))
        musts += [Must("as fast as the library", "MPI library")] * (comm.size == 2)
    sides.append(Side(EXECUTABLE, executable, tuple(musts)))
    return Case(name, x.nbytes, 1, sides, check=all_reduce_check(comm, x))


def memory(x: Floats, n: int) -> Call:
    """Return a function that makes the fewest memory accesses that a ring of n needs on one rank, without messages."""
    chunk = max(len(x) // n, 1)
    mine, other = x[:chunk], np.full(chunk, 0, np.float32)  # not np.zeros, whose unwritten pages share memory

    def move() -> None:
        for _ in range(n - 1):
            np.add(mine, other, out=mine)
            np.copyto(mine, other)

    return move


def compiled(bench: Bench, name: str, count: int) -> dict[str, Any]:
    """Time lowering the plan and binding the program; return the record, with the maximum over ranks. Collective."""
    rank, ranks = bench.comm.rank, bench.comm.size
    x = np.zeros(count, np.float32)
    lowered, bound = [], []
    program = lower_plan(get_algorithm(Operation.ALL_REDUCE, name).plan(ranks), rank, count, x.itemsize, in_place=True)
    for _ in range(BINDINGS):
        begin = time.perf_counter()
        lower_plan(get_algorithm(Operation.ALL_REDUCE, name).plan(ranks), rank, count, x.itemsize, in_place=True)
        lowered.append(time.perf_counter() - begin)
    for _ in range(BINDINGS + 1):
        begin = time.perf_counter()
        executable = bench.own.all_reduce_init(x, algorithm=name)
        bound.append(time.perf_counter() - begin)
        executable.free()
    worst = np.array([lowered, bound[1:]])  # the first binding may also lower the plan
    bench.comm.Allreduce(MPI.IN_PLACE, worst, MPI.MAX)
    lower_us, bind_us = summary_of(worst[0]), summary_of(worst[1])
    messages = sum(isinstance(step, Send | Receive) for step in program.instructions)
    total_ms = ((lower_us["p50"] or 0) + (bind_us["p50"] or 0)) / 1e3
    return {
        "schema": SCHEMA,
        "kind": "compile",
        "script": bench.script,
        "case": name,
        "ranks": ranks,
        "nbytes": x.nbytes,
        "steps": len(program.instructions),
        "messages": messages,
        "lower_us": lower_us,
        "bind_us": bind_us,
        "musts": [{"text": f"compiled within {COMPILED_WITHIN_MS:.0f} ms", "holds": total_ms <= COMPILED_WITHIN_MS}],
        "line": f"{format_size(x.nbytes):>8}        {name:<22} compiled: {len(program.instructions)} instructions, "
        f"{messages} messages; lowered in {lower_us['p50']:.0f} us, bound in {bind_us['p50']:.0f} us "
        f"(within {COMPILED_WITHIN_MS:.0f} ms: {'holds' if total_ms <= COMPILED_WITHIN_MS else 'MISSED'})",
    }


def floor(bench: Bench, case: Case) -> dict[str, Any]:
    """Return the record that compares the ring with the memory's limit, the case's side MEMORY.

    In each of n - 1 steps a rank reads two chunks and writes their sum. In each of n - 1 more steps, a rank reads
    and writes one chunk.
    """
    n = bench.comm.size
    moved = 5 * (n - 1) * (case.nbytes // n)
    took, measured = (float(np.median(case.side(name).samples_us)) for name in (MEMORY, EXECUTABLE))
    return {
        "schema": SCHEMA,
        "kind": "floor",
        "script": bench.script,
        "case": case.name,
        "ranks": n,
        "nbytes": case.nbytes,
        "moved_bytes": moved,
        "floor_us": took,
        "GBps_a_rank": moved / took / 1e3,
        "measured_us": measured,
        "line": f"{format_size(case.nbytes):>8}        {case.name:<22} floor: a rank moves {moved / MiB:.0f} MiB in "
        f"memory; {n} ranks at once take {took:.0f} us ({moved / took / 1e3:.1f} GB/s each); "
        f"measured {measured:.0f} us, {measured / took:.2f}x the floor",
    }


def repeated_gather(rank: IntArray, n: int) -> Rounds:
    """Plan at least EXCHANGES rounds of a repeated ring all-gather: each rank sends and receives one chunk a round."""
    once = all_gather(rank, n)
    turns = -(-EXCHANGES // len(once))
    return Rounds(turns * len(once), once.chunks, lambda t: once.at(t % len(once)))


def steps_case(bench: Bench) -> tuple[Case, list[MPI.Request]]:
    """Return the case of exchanges of 8 bytes with the neighbours, and MPI requests that the caller must free."""
    comm, n = bench.comm, bench.comm.size
    dest, source = (comm.rank + 1) % n, (comm.rank - 1) % n
    out, into = np.zeros(2, np.float32), np.zeros(2, np.float32)
    receive, send = comm.Recv_init([into, MPI.FLOAT], source, 7), comm.Send_init([out, MPI.FLOAT], dest, 7)
    specs = [out, MPI.FLOAT], [into, MPI.FLOAT]

    def persistent() -> None:
        receive.Start()
        send.Start()
        receive.Wait()
        send.Wait()

    def sendrecv() -> None:
        comm.Sendrecv(specs[0], dest, 7, specs[1], source, 7)

    algorithm = make_algorithm(Operation.ALL_GATHER, "repeated", repeated_gather, None)
    whole = np.zeros((n, 2), np.float32)
    executable = bench.own.prepare(Operation.ALL_GATHER, whole[comm.rank], out=whole, algorithm=algorithm)
    exchanges = len(repeated_gather(np.array([comm.rank]), n))

    def times(call: Call) -> Call:
        def loop() -> None:
            for _ in range(exchanges):
                call()

        return loop

    sides = [
        Side("Start, Start, Wait, Wait", times(persistent)),
        Side("Start, Start, Wait, Wait (A/A)", times(persistent)),
        Side("Sendrecv", times(sendrecv)),
        Side(EXECUTABLE, executable, (Must("no slower than raw requests", "Start, Start, Wait, Wait"),)),
    ]
    for side in sides:
        side.seconds = partial(per_exchange, comm, side.call, exchanges)
    return Case("one exchange", out.nbytes, exchanges, sides), [receive, send]


def per_exchange(comm: MPI.Intracomm, call: Callable[[], object], exchanges: int) -> float:
    """Time a call that makes several exchanges, after a barrier; return this rank's seconds per exchange."""
    comm.Barrier()
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) / exchanges


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", "8,64K,1M,64M", measure))
