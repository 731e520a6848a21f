"""Wrong command lines and calls: one paragraph with a remedy, the right exit status, and nothing left in /dev/shm."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpccoll.doctor.shared_memory import list_library_files
from hpccoll.processes.launcher import without_launcher
from tests.jobs.launch import BIN, LIMIT_S, environment
from tests.leftovers import SHM

PROGRESS = ("prterun", "mpirun", "--------", "   Process name", "   Exit code", "thus causing the job")

# The arguments of hpccoll, the expected exit status, and strings that the error message must contain.
ALONE: list[tuple[str, int, tuple[str, ...]]] = [
    ("bnech", 2, ("unknown command 'bnech'", "did you mean bench?", "bench, compare, demo")),
    ("lab statsu", 2, ("unknown command 'statsu'", "did you mean status?")),
    ("--bogus", 2, ("No such option", "See hpccoll --help")),
    ("schema x", 2, ("unexpected extra argument", "See hpccoll schema --help")),
    ("verify --ranks 0", 2, ("'0'", "need 1 <= FIRST <= LAST")),
    ("verify --ranks 4:2", 2, ("'4:2'", "need 1 <= FIRST <= LAST")),
    ("verify --ranks x", 2, ("'x' is not a list of rank counts", "1,2,4:128")),
    ("verify all_reduce/rng", 2, ("'rng'", "did you mean ring?")),
    ("verify nop", 2, ("unknown operation 'nop'", "choose one of: all_gather")),
    ("verify sendrecv", 2, ("unknown operation 'sendrecv'", "hpccoll preflight times messages")),
    ("verify missing.py:f", 2, ("missing.py cannot be read", "write FILE.py:FUNCTION")),
    ("verify mine.py:other", 2, ("mine.py has no function 'other'", "it has f")),
    ("verify mine.py:f", 2, ("does not name its operation", "@algorithm(Operation.")),
    ("verify --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("simulate --ranks 0", 2, ("--ranks '0'", "from 1 to 1048576")),
    ("simulate --ranks", 2, ("requires an argument", "See hpccoll simulate --help")),
    ("simulate --size 8Q", 2, ("'8Q' is not a size", "8, 64K, 1.5M or 2G")),
    ("simulate --machine nosuch", 2, ("unknown machine 'nosuch'", "summit")),
    ("simulate --machine missing.toml", 2, ("missing.toml: cannot read it", "one of dgx-h100, h200")),
    ("simulate --machine fit:garbage.jsonl", 2, ("garbage.jsonl: not a record", "--json")),
    ("simulate --alpha x", 2, ("--alpha 'x' is not a time", "3.7us")),
    ("simulate broadcast --root 99", 2, ("root=99", "0 <= root < ranks")),
    ("simulate --map x.bmp", 2, ("--map x.bmp", ".png, .svg, .pdf")),
    ("simulate --map x.png --size 8M", 2, ("--map x.png draws all sizes", "leave --size out")),
    ("simulate --map x.png --json x.jsonl", 2, ("leave --json out",)),
    ("simulate --chunks 0", 2, ("'--chunks': 0 is not in the range x>=1", "See hpccoll simulate --help")),
    ("simulate --nodes 99", 2, ("--nodes 99 is more than --ranks 16", "every node needs a rank")),
    ("draw all_reduce/ring -o x.pdf", 2, ("-o x.pdf", ".txt .svg .png .gif .json")),
    ("draw all_reduce/ring -o x.svg --ranks 0", 2, ("--ranks 0", "at least 1")),
    ("draw all_reduce/ring -o x.svg --root 9", 2, ("--root 9 is not a rank of 0..4",)),
    ("draw all_reduce/ring -o x.svg --chunks 999", 2, ("--chunks 999", "up to 64 chunks")),
    ("draw all_reduce/ring -o x.svg --nodes 7", 2, ("--nodes 7 does not divide 5 ranks",)),
    ("draw all_reduce -o x.svg", 2, ("names 18 algorithms", "draw one of them: all_reduce/bine")),
    ("draw all_reduce/ring -o x.svg --machine laptop", 2, ("is for traces", "write to a .json file")),
    ("draw all_reduce/ring -o x.svg --size 8M", 2, ("--size is for traces", "--machine or --measured")),
    ("draw all_reduce/ring -o x.json --measured --nodes 2", 2, ("--measured", "leave --nodes out")),
    ("export all_reduce/ring -o x.foo", 2, (".foo is not a format", ".json")),
    ("export all_reduce/ring -o x.json --ranks 0", 2, ("ranks=0", "need ranks >= 1")),
    ("demo brodcast", 2, ("unknown example 'brodcast'", "did you mean broadcast")),
    ("demo broadcast", 2, ("takes 3 ranks, and this is one process", "mpirun -n 3 hpccoll demo broadcast")),
    ("demo --draw", 2, ("name an example", "hpccoll demo lists them")),
    ("demo broadcast --force", 2, ("--force is for send_send_deadlock", "runs without it")),
    ("train", 2, ("Missing argument 'STRATEGY'", "See hpccoll train --help")),
    ("train xx", 2, ("unknown strategy 'xx'", "dp=2,tp=2,pp=2")),
    ("train dp --model gpt9", 2, ("'gpt9' is not one of 'mlp'", "See hpccoll train --help")),
    ("train dp --stop-file x", 2, ("--stop-file needs a directory for checkpoints", "add --checkpoint DIR")),
    ("train dp --compare --check", 2, ("takes no --check", "leave one of them out")),
    ("tune", 2, ("two ranks or more", "mpirun -n 4 hpccoll tune")),
    ("tune --show al_reduce", 2, ("unknown operation 'al_reduce'",)),
    ("tune --show --output no.json", 2, ("no table is stored", "mpirun -n RANKS hpccoll tune")),
    ("doctor --require foo", 2, ("unknown requirement 'foo'", "cuda_aware")),
    ("doctor --limit 0", 2, ("0.0 is not in the range x>0", "See hpccoll doctor --help")),
    ("report", 2, ("Missing argument", "See hpccoll report --help")),
    ("report --crash . -o x.html", 2, ("--crash . writes no page", "leave --output out")),
    ("report --crash . missing.jsonl", 2, ("leave missing.jsonl out",)),
    ("report missing.jsonl", 2, ("missing.jsonl: cannot read it", "--json")),
    ("report garbage.jsonl -o garbage.jsonl", 2, ("is one of the result files", "name another file")),
    ("scaling garbage.jsonl", 2, ("not a record of schema", "--json")),
    ("compare", 2, ("name two result files to compare", "--run and --against")),
    ("compare missing.jsonl garbage.jsonl", 2, ("A missing.jsonl: cannot read it", "--json")),
    ("compare garbage.jsonl", 2, ("not a record of schema", "--json")),
    ("compare --run no-such-program --against no-such-program", 3, ("was not found", "activate its")),
    ("lab up --nodes 0", 2, ("--nodes 0", "1 to 250 nodes")),
    ("preflight --size 0", 2, ("--size 0 measures no link", "--size 4M")),
    ("preflight --reach", 3, ("SLURM_STEP_NODELIST is not set", "start it by srun")),
    ("bench --json a.jsonl --resume b.jsonl", 2, ("--json a.jsonl and --resume b.jsonl", "give one of them")),
    ("barrier --timeout 0", 2, ("0.0 is not in the range x>0", "See hpccoll barrier --help")),
    ("barrier --scale 0", 2, ("0.0 is not in the range x>0", "See hpccoll barrier --help")),
    ("bench --bogus", 2, ("No such option", "See hpccoll bench --help")),
    ("bench --ranks 1", 2, ("No such option", "mpirun sets the number of ranks", "See hpccoll bench --help")),
    ("bench -n 0", 2, ("0 is not in the range x>=1", "See hpccoll bench --help")),
    ("bench --budget 0", 2, ("0.0 is not in the range x>0", "See hpccoll bench --help")),
]
# The same in jobs of two ranks: errors of rank 0 and of all ranks, before and after MPI starts.
IN_JOBS: list[tuple[str, int, tuple[str, ...]]] = [
    ("barrier --pattern zigzag", 2, ("unknown pattern 'zigzag'", "choose one of: all, ascending")),
    ("barrier --inject-delay late", 2, ("--inject-delay 'late' is not RANK:US", "such as 1:200")),
    ("barrier --inject-delay 2:5", 2, ("--inject-delay 2:5: 2 is not a rank of 0..1",)),
    ("barrier --noise 2", 2, ("--noise 2 is not a rank of 0..1",)),
    ("barrier --spread soon", 2, ("--spread 'soon' is not a time", "3.7us")),
    ("barrier --engine foo", 2, ("unknown engine 'foo'", "choose one of: gloo, hpccoll, mpi, nccl, torch-hpccoll")),
    ("barrier --algorithm linaer", 2, ("unknown barrier 'linaer'", "did you mean linear?")),
    ("barrier --engine mpi --clock sundial", 2, ("unknown clock 'sundial'", "choose one of: hca3, host")),
    ("barrier --engine mpi --machine nosuch", 2, ("unknown machine 'nosuch'", "summit")),
    ("barrier --engine mpi --plot x.bmp", 2, ("--plot x.bmp", ".png, .svg, .pdf")),
    ("barrier --engine mpi --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("barrier --engine mpi --resume garbage.jsonl", 2, ("not a record of schema", "--json")),
    ("barrier --engine nccl", 3, ("requested engines are not available", "nccl")),
    ("bench --bogus", 2, ("No such option", "See hpccoll bench --help")),
    ("bench al_reduce", 2, ("unknown operation 'al_reduce'", "did you mean all_reduce")),
    ("bench -d float31", 2, ("unknown dtype 'float31'", "did you mean float32")),
    ("bench -o mean", 2, ("unknown reduction 'mean'", "choose one of: avg")),
    ("bench --clock hca4", 2, ("unknown clock 'hca4'", "did you mean hca3? choose one of: hca3, jones_koenig, skampi")),
    ("bench --start barrier --clock hca3", 2, ("--start barrier uses no clock", "leave out --clock")),
    ("bench --start never", 2, ("'never' is not one of 'auto', 'window', 'barrier'",)),
    ("bench --window 0", 2, ("0.0 is not in the range x>0", "See hpccoll bench --help")),
    ("bench -r 7", 2, ("--root 7 is not a rank of 0..1",)),
    ("bench -b 1X", 2, ("'1X' is not a size", "8, 64K, 1.5M or 2G")),
    ("bench -b 64 -e 8", 2, ("--min-bytes <= --max-bytes",)),
    ("bench --engine foo", 2, ("unknown engine 'foo'", "choose one of: gloo, hpccoll, mpi, nccl, torch-hpccoll")),
    ("bench --algorithm rng", 2, ("'rng'", "did you mean ring?")),
    ("bench --engine mpi --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("bench --engine mpi --plot x.bmp", 2, ("--plot x.bmp", ".png, .svg, .pdf")),
    ("bench --engine mpi --resume garbage.jsonl", 2, ("not a record of schema", "--json")),
    ("bench -d bool", 2, ("'sum' is not defined for dtype bool", "use bor")),
    ("train dp=7", 2, ("a mesh of 7 ranks, but this job has 2 ranks", "mpirun -n 7")),
    ("train dp --account --model gpt --plot x.bmp", 2, ("--plot x.bmp", ".png, .svg, .pdf")),
    ("train dp --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("tune nosuch", 2, ("unknown operation 'nosuch'", "choose one of: all_gather")),
    ("tune --buffer foo", 2, ("unknown buffer 'foo'", "choose one of: cuda, host, symmetric")),
    ("tune -d float32,int32", 2, ("one time per element size", "both have 4 B")),
    ("tune barrier --output mine.py/x", 2, ("--output mine.py/x", "name a file in a writable directory")),
    ("demo broadcast", 2, ("takes 3 ranks, and this job has 2", "mpirun -n 3 hpccoll demo broadcast")),
    ("demo reduce_scatter_ranks2 --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("doctor --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("preflight", 2, ("all ranks of this job are on", "--ranks-as-nodes")),
    ("preflight --ranks-as-nodes --json nowhere/x", 2, ("--json nowhere/x", "name a file in a writable directory")),
    ("draw all_reduce/ring --measured -o x.svg", 2, ("--measured times a .json trace",)),
    ("draw all_reduce/ring --measured -o nowhere/x.json", 2, ("-o nowhere/x.json", "writable directory")),
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a directory with wrong files the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.jsonl").write_text("garbage\n")
    (tmp_path / "mine.py").write_text("def f(): pass\n")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail if the test leaves files of MPI in /dev/shm that no process uses."""
    began = time.time()
    yield
    left: list[str] = []
    for _ in range(20):  # files of jobs that other tests run beside this one are in use, or soon removed
        new = (each for each in list_library_files(SHM) if not each.in_use and each.age_s < time.time() - began)
        left = [str(each.path) for each in new if not each.path.name.startswith("hpccoll-recorder-")]  # kept on purpose
        if not left:
            break
        time.sleep(0.1)
    assert not left


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with additional environment variables, outside of any MPI job, and return its result."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=without_launcher(environment(**variables)),
    )


def require_one_paragraph(done: subprocess.CompletedProcess[str], status: int, words: tuple[str, ...]) -> None:
    """Assert that a command printed one error message on one line of standard error, and nothing on standard output.

    The lines in which the launcher of Open MPI (prterun) reports the exit status of the ranks are ignored.

    Args:
        done: the completed command.
        status: the expected exit status.
        words: strings that the message must contain.
    """
    said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(PROGRESS)]
    assert done.returncode == status, done.stderr
    assert len(said) == 1, done.stderr
    assert said[0].startswith("Error: ")
    assert all(word in said[0] for word in words), said[0]
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status", "says"), ALONE, ids=[words for words, *_ in ALONE])
def test_a_wrong_command_line(words, status, says):
    require_one_paragraph(run([str(BIN / "hpccoll"), *words.split()]), status, says)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status", "says"), IN_JOBS, ids=[words for words, *_ in IN_JOBS])
def test_a_wrong_command_line_in_a_job(words, status, says):
    done = run([str(BIN / "mpirun"), "-n", "2", str(BIN / "hpccoll"), *words.split()])
    require_one_paragraph(done, status, says)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        [sys.executable, "-m", "hpccoll.mpi4py"],
        [sys.executable, "-m", "hpccoll.torch"],
        [str(BIN / "hpccoll"), "profile"],
    ],
    ids=["mpi4py", "torch", "profile"],
)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["missing.py"], "missing.py: there is no such script; give the path of a Python script"),
        (["garbage.bin"], "garbage.bin: is not a Python program"),
        (["."], ".: is a directory without a file __main__.py"),
        (["-m", "no_such_module"], "-m no_such_module: Python finds no such module"),
    ],
    ids=["missing", "not Python", "directory", "module"],
)
def test_a_program_that_python_cannot_run(program, words, says, tmp_path):
    if "torch" in program[-1]:
        pytest.importorskip("torch")
    (tmp_path / "garbage.bin").write_bytes(b"\x7fELF\0\0")
    require_one_paragraph(run([str(BIN / "mpirun"), "-n", "2", *program, *words]), 2, (says,))


# Statements that every rank of two executes, with `comm`, `x` (4 float32 numbers), `rank`, and np; the words of the
# message. After each, a collective must still work.
CALLS = {
    "comm.all_reduce(x, op='mean')": "unknown reduction 'mean'",
    "comm.all_reduce(x, algorithm='rings')": "did you mean ring",
    "comm.all_reduce(x, out=np.ones(5, 'f4'))": "out has shape (5,)",
    "comm.all_reduce(x, out=np.ones(4))": "x is float32 (numpy) and out is float64",
    "comm.all_reduce([1.0])": "x is a list; pass one array",
    "comm.all_reduce(array.array('d', [1.0]))": "x is of type array; pass an array",
    "comm.all_reduce(None)": "passed no array",
    "comm.all_reduce(x[::2])": "ascontiguousarray",
    "comm.all_reduce(np.array(['a']))": "unknown dtype",
    "comm.all_reduce(np.zeros(2, '>f4'))": "unknown dtype '>f4'",
    "comm.all_reduce(np.ones(4, bool))": "use bor",
    "comm.all_reduce(np.ones(4, 'i4'), op='avg')": "cast to a floating dtype",
    "comm.all_reduce(x, op=hpccoll.premul_sum('2'))": "does not fit dtype float32",
    "comm.all_reduce(x[:3], out=x[1:])": "x and out overlap",
    "comm.reduce(x, root=9)": "root 9 is not a rank of 0..1",
    "comm.broadcast(x, root=-1)": "root -1 is not a rank of 0..1",
    "comm.scatter(None, out=None)": "",
    "comm.all_gather(x, out=np.ones((3, 4), 'f4'))": "(3, 4)",
    "comm.send(x, 9)": "dest 9 is not a rank of 0..1",
    "comm.send(x, rank)": "use isend",
    "comm.recv(x, 7)": "source 7 is not a rank",
    "comm.isend(x, 0, tag=-1)": "tag -1 is not between 0 and",
    "comm.empty((3, -1))": "negative extent",
    "comm.empty(3, 'float31')": "did you mean float32",
}
SCRIPT = """
import array, json, sys
import numpy as np
import hpccoll
comm = hpccoll.Communicator()
rank, said = comm.rank, []
for call in json.loads(sys.argv[1]):
    x = np.ones(4, 'f4')
    try:
        eval(call)
        said.append([0, ""])
    except hpccoll.HpccollError as error:
        said.append([error.exit_status, str(error)])
    y = np.ones(3)
    comm.all_reduce(y)
    assert y.tolist() == [2] * 3
print(json.dumps(said) + "\\n" if rank == 0 else "", end="", flush=True)
"""


def test_wrong_calls_raise_one_paragraph_and_the_communicator_goes_on():
    done = run([str(BIN / "mpirun"), "-n", "2", sys.executable, "-c", SCRIPT, json.dumps(list(CALLS))])
    assert done.returncode == 0, done.stderr
    for (call, words), (status, message) in zip(CALLS.items(), json.loads(done.stdout), strict=True):
        assert status == 2, (call, message)
        assert words in message, call
        assert "\n" not in message, call
        assert len(message) > 20, call


LENGTHS = """
import sys
import numpy as np
import hpccoll
from hpccoll.runtime import job
comm = hpccoll.Communicator()
x = np.ones(1000 if comm.rank else 10)
try:
    comm.all_reduce(x, algorithm=sys.argv[1])
    comm.all_reduce(x, algorithm=sys.argv[1])
except hpccoll.CommunicationError as error:
    print(f"{error}", flush=True)
    job.abort(4)
"""


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
def test_arrays_of_different_lengths_raise_one_paragraph_instead_of_mpi_s_own_stack(algorithm):
    done = run([str(BIN / "mpirun"), "-n", "2", sys.executable, "-c", LENGTHS, algorithm])
    said = [line for line in done.stdout.splitlines() if line.strip()]
    assert said, done.stderr
    for line in said:  # of the rank with the shorter array, which MPI tells, or of the other one
        assert line.startswith("all_reduce failed: ")
        assert "trunc" in line.lower() or "a message of another rank is shorter than expected" in line
        assert "HPCCOLL_DEBUG=1" in line
    assert "Traceback" not in done.stderr


LENGTHS_FOR_MPI = """
import sys
import numpy as np
import hpccoll
comm = hpccoll.Communicator()
call, x = getattr(comm, sys.argv[1]), np.ones(1000 if comm.rank else 10)
try:
    call(x, algorithm="mpi")
except hpccoll.MismatchError as error:
    print(f"{error}", flush=True)
    sys.exit(error.exit_status)
"""


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "scan"])
def test_debugging_finds_different_lengths_before_mpi_ends_the_job(operation):
    """Without HPCCOLL_DEBUG=1, MPICH ends the job itself and leaves files in /dev/shm (docs/troubleshooting.md)."""
    command = [str(BIN / "mpirun"), "-n", "2", sys.executable, "-c", LENGTHS_FOR_MPI, operation]
    done = run(command, HPCCOLL_DEBUG="1")
    assert done.returncode == 4, done.stderr
    # The lines of both ranks may run together.
    assert done.stdout.count("shape (10,) on rank 0, (1000,) on rank 1") == 2
    assert "Fatal error" not in done.stderr


REPEATED_CALLS = """
import numpy as np
import hpccoll
from hpccoll.plan import Operation

def on_new_arrays(comm, algorithm):
    for count in (5, 10) * 3:
        comm.broadcast(np.ones(count), algorithm=algorithm)
    return lambda: comm.broadcast(np.ones(5 if comm.rank else 10), algorithm=algorithm)

def on_known_arrays(comm, algorithm):
    short, long = np.ones(5), np.ones(10)
    for x in (short, long) * 4:
        comm.broadcast(x, algorithm=algorithm)
    return lambda: comm.broadcast(short if comm.rank else long, algorithm=algorithm)

def prepared(comm, algorithm):
    return comm.prepare(Operation.BROADCAST, np.ones(5 if comm.rank else 10), algorithm=algorithm)

for make in (on_new_arrays, on_known_arrays, prepared):
    for algorithm in ("mpi", "tree"):
        comm = hpccoll.Communicator()
        call = make(comm, algorithm)
        try:
            call()
        except Exception as error:
            if comm.rank == 1:
                print(make.__name__, algorithm, type(error).__name__, error, flush=True)
"""


def test_repeated_and_prepared_calls_explain_different_lengths_as_first_calls_do():
    done = run([str(BIN / "mpirun"), "-n", "2", sys.executable, "-c", REPEATED_CALLS])
    said = done.stdout.splitlines()
    made = [
        f"{make} {algorithm}"
        for make in ("on_new_arrays", "on_known_arrays", "prepared")
        for algorithm in ("mpi", "tree")
    ]
    assert [" ".join(line.split()[:2]) for line in said] == made, done.stderr
    for line in said:
        assert "HPCCOLL_DEBUG=1" in line
        if " mpi " in line:  # the ranks of a node compare their calls before the MPI library carries them out
            assert " MismatchError ranks called different collectives: rank 0: count 10; rank 1: count 5" in line
        else:
            assert " CommunicationError broadcast failed: " in line
            assert "trunc" in line.lower()
