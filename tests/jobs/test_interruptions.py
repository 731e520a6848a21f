"""A signal handler raises inside a call: no rank ever gets a wrong number, and none waits for long."""

from __future__ import annotations

import pytest

from tests.depth import mark_full
from tests.jobs import launch
from tests.jobs.launch import run_script
from tests.jobs.random_interruptions import run_interruptions

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("ranks", "count"), [(2, 20), (3, 8), mark_full((2, 500)), mark_full((3, 500))])
@pytest.mark.timeout(3000)
def test_no_rank_gets_a_wrong_number_after_an_interruption(ranks, count):
    total, failures = run_interruptions(count, ranks)
    assert not failures, "\n".join(failures)
    assert total["refused"]


MESSAGES = """
import signal, sys, time
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError

def handle(*_):
    raise TimeoutError

CALL = sys.argv[1]

def check(error):
    names = ("sendrecv", "send", "recv") if CALL == "sendrecv" else (CALL,)  # one of its messages, while it is tested
    assert any(f"a {name} of rank 0 was interrupted by TimeoutError" in str(error) for name in names), error

signal.signal(signal.SIGALRM, handle)
with hpccoll.Communicator() as comm:
    x = np.ones(1_000_000)  # too long to be sent before the receiver asks for it
    try:
        if comm.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            {"send": lambda: comm.send(x, 1), "recv": lambda: comm.recv(x, 1),
             "sendrecv": lambda: comm.sendrecv(x, 1, 1)}[CALL]()
        else:
            time.sleep(1.2)
            comm.recv(x, 0) if CALL == "send" else comm.send(x, 0)
    except TimeoutError:
        x[:] = 100
        began = time.monotonic()
        try:
            comm.barrier()
        except CommunicationError as error:
            check(error)
    except CommunicationError as error:
        check(error)
        sys.stdout.write("refused\\n")
comm.close()
with hpccoll.Communicator() as again:
    assert again.all_reduce(np.ones(3))[0] == again.size
    again.send(np.full(2, 5.0), 1) if again.rank == 0 else print(again.recv(np.empty(2), 0)[0])
"""


@pytest.mark.parametrize("call", ["send", "recv", "sendrecv"])
def test_an_interrupted_message_makes_the_communicator_unusable_and_it_can_be_closed(call):
    done = run_script(["-c", MESSAGES, call], 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
    assert "5.0" in done.stdout


NOTICE = """
import signal, sys, time
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError

def handle(*_):
    raise TimeoutError

signal.signal(signal.SIGALRM, handle)
comm = hpccoll.Communicator()
comm.barrier()
began = time.monotonic()
try:
    if comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.7)
        comm.recv(np.empty(1), 1)
    comm.all_reduce(np.ones(10), algorithm="shared_two_shot")
except TimeoutError:
    time.sleep(1.5)
except CommunicationError:
    sys.stdout.write(f"after {time.monotonic() - began:.2f} s\\n")
comm.close()
"""


def test_a_waiting_rank_learns_of_an_interruption_soon():
    done = run_script(NOTICE, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0.6 < float(done.stdout.split()[1]) < 1.3, done.stdout  # the call is interrupted after 0.7 s


EXACT = """
import sys, time
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError

class Interrupted(Exception):
    pass

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # in one write, so that lines of two ranks do not mix
    sys.stdout.flush()

def trace_lines(comm, limit):
    # Counts the lines of the runtime from the first one at which a call has been counted; raises at line `limit`.
    seen = [0]
    def trace(frame, event, arg):
        if event == "line" and "hpccoll/runtime" in frame.f_code.co_filename and comm._state.count:
            seen[0] += 1
            if seen[0] == limit:
                raise Interrupted
        return trace
    sys.settrace(trace)

def interrupt(algorithm, line):
    comm, x = hpccoll.Communicator(), np.empty(100)
    if comm.rank == 0:
        trace_lines(comm, line)
    else:
        time.sleep(0.2)  # rank 0 waits meanwhile
    for value in (100.0, 1000.0):
        x.fill(value)
        try:
            comm.all_reduce(x, algorithm=algorithm)
            say(comm.rank, value, x[0])
        except Interrupted:
            say(comm.rank, "interrupted")
        except CommunicationError as error:
            say(comm.rank, "refused" if "is unusable" in str(error) and "Interrupted" in str(error) else error)
        finally:
            sys.settrace(None)
    comm.close()

for line in (1, 2, 3, 20):
    interrupt(sys.argv[1], line)
"""


@pytest.mark.parametrize("algorithm", ["ring", "shared_two_shot", "shared_one_shot"])
def test_an_exception_in_a_chosen_line_of_a_wait_makes_the_communicator_unusable(algorithm):
    done = run_script(["-c", EXACT, algorithm], 2)
    said = done.stdout + done.stderr
    assert done.returncode != -1, f"it hangs: {said}"
    lines = [line.split() for line in done.stdout.splitlines() if line[:2] in ("0 ", "1 ")]
    assert lines.count(["0", "interrupted"]) == 4, said
    assert ["1", "refused"] in lines, said
    # The result is right where the data of rank 0 were complete, or the call had ended.
    numbers = [words for words in lines if words[1] not in ("refused", "interrupted")]
    assert all(float(words[2]) == 2 * float(words[1]) for words in numbers), said
    assert len(lines) == 16, said


OVERWRITE = """
import signal, sys, threading, time
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError
from hpccoll.failures import endings
from hpccoll.runtime.messages.library_call import LibraryCall

def handle(*_):
    raise TimeoutError

class StartedThread(threading.Thread):
    def start(self):
        super().start()
        handle()  # as a signal handler that interrupts the start

CALL = sys.argv[1]
comm, other = hpccoll.Communicator(), hpccoll.Communicator()
algorithm = "mpi" if CALL in ("library", "repeated library call", "lost request", "thread") else "chain"
is_asynchronous = CALL not in ("blocking", "repeated library call", "thread")
if CALL == "repeated library call":
    comm.barrier(async_op=True).wait()  # the library's calls have the non-blocking form from now on
    for _ in range(2):
        comm.broadcast(np.ones(1_000_000), root=1, algorithm=algorithm)
x = np.full(1_000_000, 1.0 - comm.rank)  # too long to be sent before the receiver asks for it
if comm.rank == 0:
    x.fill(7.0)
    endings.NOTICE_TICK_S = endings.TICK_S = 3  # this rank learns of the interruption late
    time.sleep(0.7)
comm.barrier()
if comm.rank == 1:
    signal.signal(signal.SIGALRM, handle)
    if CALL == "lost request":
        start = LibraryCall.start_at
        LibraryCall.start_at = lambda self, *arguments: (start(self, *arguments), handle())  # when MPI has returned
    elif CALL == "thread":
        other.all_reduce(np.ones(3), algorithm="ring", async_op=True)
        threading.Thread = StartedThread
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        if CALL == "message":
            comm.isend(x, 0)
        else:
            comm.broadcast(x, root=1, algorithm=algorithm, async_op=is_asynchronous)
        comm.barrier()
    except TimeoutError:
        x.fill(100.0)
else:
    time.sleep(0.25)
    if CALL == "message":
        comm.recv(x, 1)
    else:
        work = comm.broadcast(x, root=1, algorithm=algorithm, async_op=is_asynchronous)
        if is_asynchronous:
            work.wait()
        if CALL == "thread":
            other.all_reduce(np.ones(3), algorithm="ring", async_op=True).wait()
    sys.stdout.write(f"received {set(x.tolist())}\\n")
"""


@pytest.mark.parametrize(
    "call", ["blocking", "asynchronous", "library", "repeated library call", "lost request", "thread", "message"]
)
def test_what_a_program_writes_after_an_interruption_is_not_sent(call):
    said = []
    for _ in range(3):  # on a busy machine the receiver may be too late
        done = run_script(["-c", OVERWRITE, call], 2)
        said.append(done.stdout + done.stderr)
        assert "100.0" not in done.stdout, said
        if "received {0.0}" in done.stdout:
            return
    pytest.fail("\n".join(said))


LAST = """
import signal, sys
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError

def handle(*_):
    raise TimeoutError

comm = hpccoll.Communicator()
comm.barrier()
if comm.rank == 0:
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    if comm.rank == 0:
        comm.recv(np.empty(1), 1)
    comm.all_reduce(np.ones(10), algorithm="shared_two_shot")
except TimeoutError:
    pass
except CommunicationError as error:
    assert "interrupted by TimeoutError" in str(error), error
    sys.stdout.write("refused\\n")
"""


def test_a_rank_that_ends_after_an_interruption_tells_the_others(monkeypatch):
    monkeypatch.setattr(launch, "LIMIT_S", 30)
    done = run_script(LAST, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout


IN_THREAD = """
import signal, sys, time
import numpy as np
import hpccoll
from hpccoll.errors import CommunicationError

def handle(*_):
    raise TimeoutError

comm, other = hpccoll.Communicator(), hpccoll.Communicator()
if comm.rank == 0:
    work = other.all_reduce(np.ones(3), algorithm="ring", async_op=True)  # the next call runs in a thread
    comm.barrier()
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        comm.all_reduce(np.ones(10), algorithm="mpi")
    except TimeoutError:
        sys.stdout.write("interrupted\\n")
else:
    comm.barrier()
    time.sleep(1)
    try:
        comm.all_reduce(np.ones(10), algorithm="ring")
    except CommunicationError:
        other.all_reduce(np.ones(3), algorithm="ring", async_op=True).wait()
"""


def test_a_rank_ends_although_a_thread_of_it_is_left_in_mpi(monkeypatch):
    monkeypatch.setattr(launch, "LIMIT_S", 30)
    done = run_script(IN_THREAD, 2)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "interrupted" in done.stdout
    assert "call 2 (all_reduce) of rank 0 was interrupted by TimeoutError" in done.stderr


MANY = """
import time
import hpccoll
comms = [hpccoll.Communicator() for _ in range(100)]  # more than MPICH buffers messages to a rank in MPI_Finalize
rank = comms[0].rank
for comm in comms if rank == 0 else ():
    comm._state.interrupt("barrier", "TimeoutError")
while not all(comm._state.is_unusable for comm in comms):
    time.sleep(0.01)
time.sleep(rank)
"""


def test_ranks_with_many_unusable_communicators_end_one_after_the_other(monkeypatch):
    monkeypatch.setattr(launch, "LIMIT_S", 30)
    done = run_script(MANY, 2)
    assert done.returncode == 0, done.stdout + done.stderr
