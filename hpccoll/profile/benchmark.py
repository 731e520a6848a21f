"""Runs the recorded communication of a job as a benchmark, with sleeping or spinning in place of computing.

The whole job runs with the first engine, then with the next one, and so on. An engine only carries out the collectives;
messages between two ranks always go through MPI. A non-blocking collective is carried out as a blocking one, where it
was started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.replay_engines import ReplayEngine
from hpccoll.profile.replay_steps import make_steps
from hpccoll.profile.replay_times import EngineTime

_TAGS: Final = 2**15  # every MPI library takes tags below this number
_SHORTEST_S: Final = 5e-5  # shorter computing is left out, because the shortest sleep takes as long


class ReplayBenchmark:
    """Runs the communication of a recorded job on the ranks of this job, with one engine after the other.

    Creation is collective over MPI.COMM_WORLD.

    Args:
        graph: the calls of the recorded job.
        engines: names of engines, as `ReplayEngine` takes them.
        spins: where the program computed, keep the processor busy if true, and sleep if false.
        computes: whether ranks spin or sleep at all; otherwise, calls follow each other without pauses.

    Raises:
        UsageError: the job has another number of ranks than the recording.
        UnknownNameError: there is no such engine, operation or algorithm.
        UnavailableError: an engine cannot run on some rank.
    """

    def __init__(self, graph: CallGraph, engines: Sequence[str], *, spins: bool, computes: bool = True) -> None:
        world = MPI.COMM_WORLD
        size = len(graph.start_s)
        if world.size != size:
            raise UsageError(f"the recording has {size} ranks, and this job {world.size}; start it by mpirun -n {size}")
        self._world, self._engines = world, [ReplayEngine(name) for name in engines]
        self._steps, self._computes = make_steps(graph, world.rank), computes
        self._pass_time: Callable[[float], None] = _spin if spins else time.sleep
        self._most = np.zeros(max(int(graph.nbytes.max(initial=1)), 1), np.uint8)
        for members in graph.profile.comms:  # starting an engine is collective
            for engine in self._engines:
                engine.add_group(members)

    def run(self, repetitions: int) -> list[EngineTime]:
        """Run the job `repetitions` times with each engine; the engines alternate. Collective.

        Returns:
            An `EngineTime` per engine, with all its run times.
        """
        times: dict[str, list[float]] = {engine.name: [] for engine in self._engines}
        for _ in range(repetitions):
            for engine in self._engines:
                self._world.Barrier()
                begin_s = time.perf_counter()
                self._run_steps(engine)
                seconds = time.perf_counter() - begin_s
                times[engine.name].append(float(self._world.allreduce(seconds, MPI.MAX)))
        return [EngineTime(name, tuple(seconds)) for name, seconds in times.items()]

    def close(self) -> None:
        """Free the engines. Collective."""
        for engine in self._engines:
            engine.close()

    def _run_steps(self, engine: ReplayEngine) -> None:
        """Carry out all steps of this rank, with `engine` for collectives and MPI for messages."""
        receives: dict[int, MPI.Request] = {}  # by the number of the message
        sends: list[MPI.Request] = []
        for step in self._steps:
            if self._computes and step.gap_s > _SHORTEST_S:
                self._pass_time(step.gap_s)
            match step.operation:
                case "none":
                    pass
                case "send":
                    sends.append(self._world.Isend(self._most[: step.nbytes], step.peer, step.message % _TAGS))
                case "start_recv":
                    buffer = np.empty(step.nbytes, np.uint8)
                    receives[step.message] = self._world.Irecv(buffer, step.peer, step.message % _TAGS)
                case "wait":
                    receives.pop(step.message).Wait()
                case _:
                    engine.run(step)
        MPI.Request.Waitall(sends)


def _spin(seconds: float) -> None:
    """Keep the processor busy for `seconds` seconds."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass
