"""mpi4py's own tests pass over hpccoll where they pass over plain mpi4py.

The tests are in mpi4py's source archive, which is fetched from the package index into a folder of the user's cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.jobs.launch import BIN, environment
from tests.requirements import skip_or_fail

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "mpi4py.md"
FAILED = re.compile(r"(?:FAIL|ERROR): (\w+) \((\w+(?:\.\w+)+)\)")
RAN = re.compile(r"Ran (\d+) tests?")
# Modules of tests that call collectives, or the methods and constants that hpccoll replaces.
INCLUDED = "cco|comm|objmodel|attributes|pickle|subclass|p2p_obj|toplevel|util_pkl5"
OVER_HPCCOLL = ["-m", "hpccoll.mpi4py"]
RUN = """
import runpy, sys
sys.argv[0] = "main.py"
sys.path.insert(0, "")
try:
    runpy.run_path("main.py", run_name="__main__")
except SystemExit:  # a failed test would end the job before other ranks have run their tests
    pass
"""
LIMIT_S = 900  # of all tests on a loaded machine


def fetch_tests() -> Path:
    """Return the folder of the tests of the installed mpi4py; skip the test if they cannot be fetched."""
    release = version("mpi4py")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpccoll-tests"
    folder = cache / f"mpi4py-{release}" / "test"
    if not folder.is_dir():
        words = ["download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", f"mpi4py=={release}"]
        command = [sys.executable, "-m", "pip", *words, "--dest", str(cache)]
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        archive = cache / f"mpi4py-{release}.tar.gz"
        if not archive.is_file():
            skip_or_fail(f"mpi4py's source archive cannot be fetched: {fetched.stderr[-300:]}")
        with tarfile.open(archive) as content:
            content.extractall(cache, filter="data")
    return folder


def read_exceptions() -> set[str]:
    """Return the tests that do not pass over hpccoll, with reasons on the page."""
    return set(re.findall(r"^\| `(test\w+)` \|", PAGE.read_text(), re.MULTILINE))


def list_failures(folder: Path, ranks: int, *words: str) -> set[tuple[str, str]]:
    """Return the names and classes of the tests that fail on some rank, if all ranks run all tests."""
    command = [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, *words]
    # From the first call on, because few tests make so many calls of a kind that hpccoll would carry them out.
    env = environment(HPCCOLL_MPI4PY_AFTER="0")
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    output = run.stdout + run.stderr
    assert len(RAN.findall(output)) == ranks, output[-5000:]
    return set(FAILED.findall(output))


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(2, ("-i", INCLUDED), marks=pytest.mark.slow),
        *(pytest.param(ranks, (), marks=pytest.mark.full) for ranks in (1, 2, 3, 4)),
    ],
)
def test_tests_that_pass_over_plain_mpi4py_pass_over_hpccoll(ranks: int, options: tuple[str, ...]) -> None:
    folder = fetch_tests()
    words = ("--no-builddir", *options)
    failures = list_failures(folder, ranks, *OVER_HPCCOLL, "-c", RUN, *words)
    unexpected = {failure for failure in failures if failure[0] not in read_exceptions()}
    if unexpected:
        unexpected -= list_failures(folder, ranks, "-c", RUN, *words)
    assert unexpected == set()


def test_the_page_lists_at_most_four_exceptions() -> None:
    assert 0 < len(read_exceptions()) <= 4


def test_a_failing_test_is_found(tmp_path: Path) -> None:
    program = (
        "import unittest\nfrom mpi4py import MPI\nclass TestComm(unittest.TestCase):\n    def testPlain(self):\n"
        "        self.assertEqual(type(MPI.COMM_WORLD).__module__, 'mpi4py.MPI')\nunittest.main()\n"
    )
    (tmp_path / "main.py").write_text(program)
    assert list_failures(tmp_path, 2, *OVER_HPCCOLL, "-c", RUN) == {("testPlain", "__main__.TestComm.testPlain")}
    assert list_failures(tmp_path, 2, "-c", RUN) == set()
