"""A signal handler raises inside a collective: no rank ever gets a wrong number, and none waits for long."""

from __future__ import annotations

import time

import pytest

from tests.depth import mark_full
from tests.jobs import launch
from tests.jobs.launch import run_script

PROGRAM = """
import os, random, signal, sys, threading, time
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError

class Interrupted(Exception):
    pass

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # in one write, so that lines of two ranks do not mix
    sys.stdout.flush()

inside = [False]

def handle(*_):
    if not inside[0]:  # an exception between calls would end the program
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
        return
    raise KeyboardInterrupt if SEED % 4 > 1 else Interrupted

SEED, ALGORITHM, COUNT = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rng, own = random.Random(SEED), random.Random(SEED * 1000 + 7)
signal.signal(signal.SIGALRM, handle)
comm = hpccoll.Communicator()
kept = np.empty(COUNT)
total, guilty = sum(range(1, comm.size + 1)), SEED % comm.size
for _ in range(20):
    kept.fill(comm.rank + 1)
    comm.all_reduce(kept, algorithm=ALGORITHM)
    comm.all_reduce(np.full(COUNT, 1.0), algorithm=ALGORITHM)
comm.barrier()
outcome, began = "finished", time.monotonic()
if comm.rank == guilty:
    signal.setitimer(signal.ITIMER_REAL, own.uniform(1e-5, 0.02))
for step in range(4000):
    asynchronous, repeats = rng.random() < 0.2, rng.random() < 0.7
    x = kept if repeats else np.empty(COUNT)
    before, work = comm._state.count, None
    while True:  # the user calls again where the call had not begun, and waits again for an operation in flight
        try:
            inside[0] = True
            if comm._state.count == before:
                x.fill((comm.rank + 1) * (step % 9 + 1))
                work = comm.all_reduce(x, algorithm=ALGORITHM, async_op=asynchronous)
            if asynchronous:
                comm._engine.finish() if work is None else work.wait()
            inside[0] = False
            break
        except (Interrupted, KeyboardInterrupt):
            if comm._state.interruption is not None:
                before = comm._state.count
        except CommunicationError as error:
            assert "unusable" in str(error), error
            outcome = "refused"
            inside[0] = False
            break
    if outcome == "refused":
        break
    wrong = x[x != total * (step % 9 + 1)]
    assert not len(wrong), f"step {step}: {wrong[:3]}"
signal.setitimer(signal.ITIMER_REAL, 0)
say(comm.rank, outcome)
"""
LIMIT_S = 60


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a job that hangs early."""
    monkeypatch.setattr(launch, "LIMIT_S", LIMIT_S)


ALGORITHMS = ("ring", "shared_two_shot", "shared_one_shot", "mpi", "auto")


def run_interrupted(seed: int, ranks: int, algorithm: str, count: int) -> str:
    """Run a program of which one rank is interrupted, require right numbers, and return what the ranks printed."""
    began = time.monotonic()
    done = run_script(["-c", PROGRAM, str(seed), algorithm, str(count)], ranks, HPCCOLL_TUNING="off")
    said = done.stdout + done.stderr
    assert "AssertionError" not in said, said
    assert done.returncode != -1, f"it hangs: {said}"
    assert time.monotonic() - began < 60, said
    assert done.returncode == 0 or "is unusable" in done.stderr, said
    return done.stdout


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", [0, 1, *(mark_full(seed) for seed in range(2, 50))])
def test_no_rank_gets_a_wrong_number_after_an_interruption(seed, algorithm):
    run_interrupted(seed, 2 + seed % 2, algorithm, (3, 1000, 30_000)[seed % 3])


EXACT = """
import sys
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError
from hpccoll.runtime.recorder.call_recorder import CallRecorder

ALGORITHM = sys.argv[1]

class Interrupted(Exception):
    pass

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # in one write, so that lines of two ranks do not mix
    sys.stdout.flush()

comm = hpccoll.Communicator()
def count_steps(limit=None):
    seen = [0]
    def trace(frame, event, arg):
        frame.f_trace_opcodes = False
        if event == "line" and "hpccoll/runtime" in frame.f_code.co_filename:
            seen[0] += 1
            if seen[0] == limit:
                raise Interrupted
        return trace
    return seen, trace

x = np.full(100, 1.0)
for _ in range(4):
    x.fill(1.0)
    comm.all_reduce(x, algorithm=ALGORITHM)
seen, trace = count_steps()
if comm.rank == 0:
    sys.settrace(trace)
x.fill(1.0)
comm.all_reduce(x, algorithm=ALGORITHM)
sys.settrace(None)
limit = int(float(sys.argv[2]) * seen[0]) + 1
for value in (100.0, 1000.0):
    x.fill(value)
    try:
        if comm.rank == 0 and value == 100.0:
            sys.settrace(count_steps(limit)[1])
        comm.all_reduce(x, algorithm=ALGORITHM)
    except Interrupted:
        say(comm.rank, "interrupted")
        continue
    except CommunicationError as error:
        say(comm.rank, "refused" if "is unusable" in str(error) and "Interrupted" in str(error) else error)
        continue
    finally:
        sys.settrace(None)
    say(comm.rank, value, x[0])
"""


@pytest.mark.parametrize("at", [0.2, 0.5, 0.8, mark_full(0.3), mark_full(0.4), mark_full(0.6), mark_full(0.9)])
@pytest.mark.parametrize("algorithm", ["ring", "shared_two_shot", "shared_one_shot"])
def test_an_exception_in_a_chosen_line_makes_the_communicator_unusable(algorithm, at):
    done = run_script(["-c", EXACT, algorithm, str(at)], 2)
    said = done.stdout + done.stderr
    assert done.returncode != -1, f"it hangs: {said}"
    for line in done.stdout.splitlines():
        words = line.split()
        if words[1:] and words[1] not in ("refused", "interrupted") and words[0] in "01":
            assert float(words[2]) == 2 * float(words[1]), said
    assert "interrupted" not in done.stdout or "refused" in said or "is unusable" in said, said
