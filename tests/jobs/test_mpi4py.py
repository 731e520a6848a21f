"""mpi4py programs run over hpccoll without a change: results, mistakes, choices of algorithms, and the summary."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.jobs.launch import run_script

PROGRAMS = [
    Path(__file__).parents[2] / "docs" / "programs" / f"{name}.py"
    for name in ("conjugate_gradients", "jacobi", "k_means")
]
OVER_HPCCOLL = ["-m", "hpccoll.mpi4py"]
START = "import sys, time\nimport numpy as np\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\n"
AFTER = "HPCCOLL_MPI4PY_AFTER"
ONE = "np.ones(1), np.empty(1)"


def run(code: str, ranks: int = 2, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program over hpccoll, from its first calls on."""
    return run_script([*OVER_HPCCOLL, "-c", START + code], ranks, **{AFTER: "0", **variables})


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_classic_programs_print_what_they_print_over_plain_mpi4py(program: Path, ranks: int) -> None:
    plain, ours = (run_script([*words, str(program)], ranks, **{AFTER: "3"}) for words in ([], OVER_HPCCOLL))
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert plain.stdout == ours.stdout
    assert re.search(r"\d", ours.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_random_programs_have_the_results_of_plain_mpi4py(ranks: int) -> None:
    words = ["-m", "tests.mpi.mpi4py_random_programs", "--operations", "250", "--seed", str(ranks)]
    done = run_script([*OVER_HPCCOLL, *words], ranks, **{AFTER: "2"})
    assert "250 operations: none wrong" in done.stdout, done.stdout + done.stderr[-5000:]


def test_the_script_sees_its_own_folder_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "neighbor.py").write_text("value = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, mpi4py, neighbor\nprint(neighbor.value, sys.argv[1:], 'hpccoll' in mpi4py.__path__[0])\n"
    )
    done = run_script([*OVER_HPCCOLL, str(script), "-x", "y"], 1)
    assert done.stdout == "7 ['-x', 'y'] False\n", done.stderr


def test_an_exception_ends_the_job() -> None:
    done = run("w.Barrier()\nif w.rank: raise KeyError('no such thing')\nw.Barrier()")
    assert done.returncode > 0
    assert "no such thing" in done.stderr


def test_the_environment_turns_hpccoll_off() -> None:
    show = f"w.Allreduce({ONE}); w.allreduce(1); w.rank or print(type(w).__name__, '_state' in dir(w))"
    assert run(show, HPCCOLL_MPI4PY="off").stdout == "Intracomm False\n"
    assert run(show).stdout == "AcceleratedIntracomm True\n"
    wrong = run(show, HPCCOLL_MPI4PY="some")
    assert "HPCCOLL_MPI4PY=some is not one of off, collectives, all" in wrong.stderr


def test_one_line_or_one_communicator_can_be_changed() -> None:
    code = "from hpccoll.mpi4py import MPI, wrap\nw = MPI.COMM_WORLD\n"
    code += "r = w.allreduce(w.rank)\nw.rank or print(type(w).__name__, r)"
    assert run_script(["-c", code], 2).stdout == "AcceleratedIntracomm 1\n"
    code = "from mpi4py import MPI\nimport hpccoll.mpi4py\nw = MPI.COMM_WORLD\nc = hpccoll.mpi4py.wrap(w.Dup())\n"
    code += "r = [c.allreduce(i) for i in range(5)]\nw.rank or print(type(w).__name__, type(c).__name__, r)\nc.Free()"
    assert run_script(["-c", code], 2).stdout == "Intracomm AcceleratedIntracomm [0, 2, 4, 6, 8]\n"


MISTAKES = {
    "w.Allreduce(np.ones(4 + w.rank), np.empty(4 + w.rank))": "rank 0: count 4; rank 1: count 5",
    "w.Barrier() if w.rank else w.Bcast(np.ones(3))": "rank 0: operation broadcast, count 3",
    f"sys.exit(0) if w.rank else w.Allreduce({ONE})": "rank 1 of 2",
    "sys.exit(0) if w.rank else w.allreduce(3)": "rank 1 of 2",
    "time.sleep(100) if w.rank else w.gather([1])": "not arrived rank 1",
    "c = w.Split(0)\ntime.sleep(100) if w.rank else c.Barrier()": "rank 1 is in no call, and other ranks wait for it",
}
MISTAKES_IN_OTHER_CALLS = {
    "sys.exit(0) if w.rank else w.Allreduce(np.ones(1, int), np.ones(1, int), MPI.LAND)": "rank 1 of 2",
    "time.sleep(100) if w.rank else w.Gatherv(np.ones(1), np.empty(2))": "not arrived rank 1",
    f"w.Scan({ONE}) if w.rank else w.Reduce({ONE})": "rank 0: reduce, algorithm shared",
    "x = np.ones(2)\nw.Allgatherv(x[:1], x) if w.rank else w.Alltoallv(x, x)": "rank 0: MPI's Alltoallv",
    "time.sleep(100) if w.rank else w.alltoall([None, b'x' * 10000])": "not arrived rank 1",
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES_IN_OTHER_CALLS)
def test_a_mistake_in_a_call_of_the_mpi_library_ends_with_a_report(mistake: str) -> None:
    done = run(mistake, HPCCOLL_TIMEOUT="2")
    assert done.returncode > 0
    assert MISTAKES_IN_OTHER_CALLS[mistake] in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("first", [f"w.Allreduce({ONE})\n", ""], ids=["later", "first"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_with_a_report_that_names_the_rank(mistake: str, first: str) -> None:
    done = run(first + mistake, HPCCOLL_TIMEOUT="2")
    assert done.returncode > 0
    assert MISTAKES[mistake] in done.stderr


def test_the_summary_lists_what_ran_where() -> None:
    gather = "w.Gatherv(np.ones(1), [np.empty(2), [1, 1]])"
    code = f"for _ in range(5): w.Allreduce({ONE})\n{gather}\nw.allreduce(np.ones(10000))"
    done = run(code, HPCCOLL_SUMMARY="1")
    assert "hpccoll carried out 6 of 7 collectives of rank 0" in done.stderr, done.stderr
    assert re.search(r"^Allreduce +< 1 KiB +5 +[\d.]+ +100 %$", done.stderr, re.MULTILINE)
    assert re.search(r"^Gatherv +< 1 KiB +1 +[\d.]+ +0 %  hpccoll has no such call \(1\)$", done.stderr, re.MULTILINE)
    assert "collectives of rank" not in run(code).stderr


def test_a_wrapped_communicator_has_a_summary() -> None:
    code = f"import hpccoll.mpi4py\nc = hpccoll.mpi4py.wrap(w)\nfor _ in range(3): c.Allreduce({ONE})"
    done = run_script(["-c", START + code], 2, HPCCOLL_SUMMARY="1", **{AFTER: "1"})
    assert "hpccoll carried out 2 of 3 collectives of rank 0" in done.stderr, done.stderr
    assert re.search(r"^Allreduce .* 67 %  few such calls so far \(1\)$", done.stderr, re.MULTILINE)


def test_hpccoll_waits_for_several_calls_of_a_kind() -> None:
    """A call adds one point, and one more per 16 KiB; a kind needs 1,000 points, and a communicator 50,000."""
    code = f"for _ in range(50_001): w.Allreduce({ONE})\nx = np.ones(10**6)\n"
    code += "for _ in range(5): w.Allreduce(x, x.copy())"
    done = run_script([*OVER_HPCCOLL, "-c", START + code], 2, HPCCOLL_SUMMARY="1")
    assert "hpccoll carried out 3 of 50006 collectives" in done.stderr, done.stderr
    assert re.search(r"^Allreduce +< 1 KiB +50001 .* 0 %  few such calls so far \(50000\)$", done.stderr, re.MULTILINE)
    assert re.search(r"^Allreduce +< 64 MiB +5 .* 40 %  few such calls so far \(3\)$", done.stderr, re.MULTILINE)


def test_a_program_starts_without_the_modules_that_carry_out_collectives() -> None:
    code = f"for _ in range(10): w.Allreduce({ONE}); w.allreduce(1)\nw.Barrier(); w.Bcast(np.ones(3)); w.gather(2)\n"
    code += "modules = 'communicator', 'runtime.engine', 'algorithms', 'selection'\n"
    code += "print([name for name in modules if f'hpccoll.{name}' in sys.modules])"
    done = run_script([*OVER_HPCCOLL, "-c", START + code], 2)
    assert "".join(done.stdout.split()) == "[][]", done.stderr  # mpirun may join the lines of both ranks


def test_ranks_count_their_first_calls_alike_whatever_buffers_they_pass() -> None:
    code = "x, y = np.ones(4), np.empty(4)\nfor i in range(12):\n"
    code += "    w.Allreduce(x, [y, MPI.DOUBLE] if i % 2 == w.rank else y)\n    assert (y == w.size).all()\n"
    done = run(code, HPCCOLL_SUMMARY="1", HPCCOLL_MPI4PY_AFTER="5")
    assert "hpccoll carried out 7 of 12 collectives of rank 0" in done.stderr, done.stderr


def test_a_kind_that_objects_have_selected_runs_over_hpccoll_on_all_ranks() -> None:
    """The small slots of `bcast` have 256 bytes; rank 1 passes an array of as many bytes in another form."""
    code = f"for _ in range(6): w.Allreduce({ONE})\nx = np.full(256, w.rank, np.uint8)\n"
    code += "def copy_bytes(): w.Bcast([x, MPI.UINT8_T] if w.rank else x)\ncopy_bytes(); copy_bytes()\n"
    code += "for _ in range(2): w.bcast(1)\ncopy_bytes(); print(x.sum())"
    printed = run(code, HPCCOLL_SUMMARY="1", HPCCOLL_MPI4PY_AFTER="5").stdout
    assert "".join(printed.split()) == "00"  # mpirun may join the lines of both ranks


def test_a_reduction_that_hpccoll_lacks_stays_with_mpi() -> None:
    code = "x, y = np.ones(3, int), np.empty(3, int)\nfor i in range(12):\n    w.Allreduce(x, y, MPI.LAND)\n"
    code += f"    w.Allreduce({ONE}); assert y.all()\n"
    done = run(code, HPCCOLL_SUMMARY="1", HPCCOLL_MPI4PY_AFTER="5")
    assert "hpccoll carried out 7 of 24 collectives of rank 0" in done.stderr, done.stderr
    assert "reduction, type or no data (12), few such calls so far (5)" in done.stderr, done.stderr


def test_ranks_with_other_buffers_take_the_same_way_as_plain_arrays() -> None:
    """A collective of objects runs before one of buffers of the same size."""
    code = "n = 2**20\nfor _ in range(6):\n    w.bcast(np.zeros(n, np.uint8)); w.allgather(np.zeros(n, np.uint8))\n"
    code += "    x = np.full(n, w.rank, np.uint8); y = np.zeros(2 * n, np.uint8)\n"
    code += "    t = MPI.UINT8_T.Create_contiguous(n).Commit(); b = [x, 1, t] if w.rank else x\n"
    code += "    w.Allgather(b, y); w.Bcast(b)\n    assert y.sum() == n and x.sum() == 0\nprint('equal')"
    assert run(code).stdout.count("equal") == 2


@pytest.mark.parametrize("name", ["Scan", "Exscan"])
def test_scans_in_all_forms(name: str) -> None:
    code = "for dtype in ('i4', 'f8', 'c16'):\n  for n in (1, 5, 3000):\n    p = MPI.Intracomm(w)\n"
    code += "    x = np.arange(n).astype(dtype) + w.rank; y, z = np.zeros(n, dtype), np.zeros(n, dtype)\n"
    code += (
        f"    for give in (lambda v: v, lambda v: [v, MPI._typedict[v.dtype.char]]):\n        w.{name}(x, give(y))\n"
    )
    code += f"        p.{name}(x, z); assert (y == z).all(); y[:] = z[:] = x\n"
    code += f"        w.{name}(MPI.IN_PLACE, y); p.{name}(MPI.IN_PLACE, z); assert w.rank == 0 or (y == z).all()\n"
    code += "print(type(w).__name__)"
    done = run(code, ranks=3, HPCCOLL_SUMMARY="1")
    assert done.stdout.count("AcceleratedIntracomm") == 3, done.stderr
    assert "hpccoll carried out 36 of 36" in done.stderr, done.stderr


def test_a_later_choice_holds_for_calls_of_a_kind_that_ran_before() -> None:
    code = "import hpccoll.mpi4py\nx, y = np.ones(10), np.empty(10)\nfor _ in range(4): w.Allreduce(x, y)\n"
    code += "hpccoll.mpi4py.configure('Allreduce', 'mpi')\nfor _ in range(4): w.Allreduce(x, y)\n"
    done = run(code, HPCCOLL_SUMMARY="1")
    row = r"^Allreduce +< 1 KiB +8 +[\d.]+ +50 %  chosen by the user \(4\)$"
    assert re.search(row, done.stderr, re.MULTILINE), done.stderr


def test_algorithms_are_chosen_by_operation_and_size() -> None:
    code = "for n in (10, 10000):\n    x, y = np.ones(n), np.empty(n)\n    w.Allreduce(x, y)\n"
    code += "    assert (y == w.size).all()\n"
    code += "import hpccoll.mpi4py\nhpccoll.mpi4py.configure('Allreduce', 'mpi', least='1K')\nw.Allreduce(x, y)"
    choices = "Allreduce:-1K=ring,Allreduce:1K-=recursive_doubling"
    done = run(code, HPCCOLL_SUMMARY="1", HPCCOLL_MPI4PY_ALGORITHMS=choices)
    row = r"^Allreduce +< 1 MiB +2 +[\d.]+ +50 %  chosen by the user \(1\)$"
    assert re.search(row, done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"^Allreduce +< 1 KiB +1 +[\d.]+ +100 %$", done.stderr, re.MULTILINE)
    wrong = run("", HPCCOLL_MPI4PY_ALGORITHMS="Allreduce:5=ring")
    assert "write for example Allreduce:64K-1M=ring,Bcast=mpi" in wrong.stderr
