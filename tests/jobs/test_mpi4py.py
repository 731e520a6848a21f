"""mpi4py programs run over hpccoll without a change: results, mistakes, choices of algorithms, and the summary."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.jobs.launch import run_script

PROGRAMS = sorted((Path(__file__).parents[2] / "docs" / "programs").glob("*.py"))
OVER_HPCCOLL = ["-m", "hpccoll.mpi4py"]
START = "import sys, time\nimport numpy as np\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\n"
ONE = "np.ones(1), np.empty(1)"


def run(code: str, ranks: int = 2, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program over hpccoll."""
    return run_script([*OVER_HPCCOLL, "-c", START + code], ranks, **variables)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_classic_programs_print_what_they_print_over_plain_mpi4py(program: Path, ranks: int) -> None:
    plain, ours = (run_script([*words, str(program)], ranks) for words in ([], OVER_HPCCOLL))
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert plain.stdout == ours.stdout
    assert re.search(r"\d", ours.stdout)


@pytest.mark.parametrize("ranks", [2, 3])
def test_random_programs_have_the_results_of_plain_mpi4py(ranks: int) -> None:
    words = ["-m", "tests.mpi.mpi4py_random_programs", "--operations", "250", "--seed", str(ranks)]
    done = run_script([*OVER_HPCCOLL, *words], ranks)
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


@pytest.mark.parametrize("first", [f"w.Allreduce({ONE})\n", ""], ids=["later", "first"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_with_a_report_that_names_the_rank(mistake: str, first: str) -> None:
    done = run(first + mistake, HPCCOLL_TIMEOUT="2")
    assert done.returncode > 0
    assert MISTAKES[mistake] in done.stderr


def test_the_summary_lists_what_ran_where() -> None:
    code = f"for _ in range(5): w.Allreduce({ONE})\nw.Scan({ONE})\nw.allreduce(np.ones(10000))"
    done = run(code, HPCCOLL_SUMMARY="1")
    assert "hpccoll carried out 6 of 7 collectives of rank 0" in done.stderr, done.stderr
    assert re.search(r"^Allreduce +< 1 KiB +5 +[\d.]+ +100 %$", done.stderr, re.MULTILINE)
    assert re.search(r"^Scan +< 1 KiB +1 +[\d.]+ +0 %  hpccoll has no such call \(1\)$", done.stderr, re.MULTILINE)
    assert "collectives of rank" not in run(code).stderr


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
