"""Plant mutants one at a time into a copy of this tree, and print those that no test finds.

    python -m tests.mutation                                  # the mutants of mutants.jsonl, each with its own test
    python -m tests.mutation --draw 20 --seed 7 --pattern 'hpccoll/plan/*.py' tests/mpi/test_matrix.py

With --draw, new mutants are drawn. Each is tried with the unit tests of its module, then with those of its package,
then with the given tests. Those that a test finds are appended to the file --keep with the name of that test; the
others are printed. Only tests of `make test` run; those below tests/mpi run on two ranks.
The exit status is 1 if a mutant survived.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import msgspec

from tests.mutation.mutants import Mutant, draw_mutants, read_mutants

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).parent / "mutants.jsonl"
LIMIT_S = 300  # for the tests of one mutant: a mutant that makes a test hang is found as well
COPIED = ("hpccoll", "tests", "docs", "bench", "slurm", "pyproject.toml", "README.md", "Makefile")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--cases", "quick")
BUILD = (sys.executable, "hpccoll/native/compiler.py")


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("--draw", type=int, default=0, metavar="COUNT", help="draw new mutants instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pattern", default="hpccoll/**/*.py", help="files to change (default: %(default)s)")
    parser.add_argument("--keep", type=Path, default=KEPT, help="file to which found mutants are appended")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: %(default)s)")
    parser.add_argument("tests", nargs="*", help="more tests to run for a drawn mutant")
    options = parser.parse_args()
    drawn = draw_mutants(ROOT, options.draw, options.seed, options.pattern)
    mutants = drawn or read_mutants(KEPT)
    survivors = 0
    for mutant, test in try_mutants(mutants, options.tests, options.jobs):
        survivors += not test
        print(f"{'found by ' + test if test else 'SURVIVED'}: {mutant.file}: {mutant.new.strip()}", flush=True)
        if test and options.draw:
            with options.keep.open("ab") as kept:
                kept.write(msgspec.json.encode(msgspec.structs.replace(mutant, test=test)) + b"\n")
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants were found")
    return int(survivors > 0)


def try_mutants(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Yield each mutant with the test that found it, or an empty string; `jobs` mutants are tried at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(copy_tree(Path(folder) / str(number)))

        def try_one(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                with planted(mutant, tree):
                    return find_failing_test(tree, [mutant.test] if mutant.test else [*list_unit_tests(mutant), *tests])
            finally:
                trees.put(tree)

        yield from zip(mutants, pool.map(try_one, mutants), strict=True)


def list_unit_tests(mutant: Mutant) -> list[str]:
    """Return the unit tests of a mutant's module, if there are any, and of its package."""
    path = Path(mutant.file).relative_to("hpccoll")
    names = [Path("tests/unit") / path.parent / f"test_{path.stem}.py", Path("tests/unit") / path.parts[0]]
    return [str(name) for name in names if (ROOT / name).exists()]


def copy_tree(target: Path) -> Path:
    """Copy the parts of this tree that tests need, and return the target."""
    for name in COPIED:
        source, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return target


@contextmanager
def planted(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Plant a mutant into a tree for the time of a `with` block; the extension is built if a C file changes."""
    path = tree / mutant.file
    original = path.read_bytes()
    try:
        mutant.apply(tree)
        build(mutant, tree)
        yield
    finally:
        path.write_bytes(original)
        build(mutant, tree)


def build(mutant: Mutant, tree: Path) -> None:
    """Build the extension of a tree, if the mutant is in a file of C."""
    if not mutant.file.endswith(".py"):
        subprocess.run(BUILD, cwd=tree, env=make_environment(tree), check=True, capture_output=True, timeout=LIMIT_S)


def find_failing_test(tree: Path, tests: Sequence[str]) -> str:
    """Return the name of the first test that fails in `tree`, or an empty string; a hang counts as a failure."""
    for test in tests:
        launch = (str(Path(sys.executable).parent / "mpirun"), "-n", "2") if test.startswith("tests/mpi") else ()
        options = ("--with-mpi",) if launch else ()
        command = ("timeout", "--kill-after=5", str(LIMIT_S), *launch, *PYTEST, *options, test)
        done = subprocess.run(
            command, cwd=tree, env=make_environment(tree), capture_output=True, text=True, check=False
        )
        if done.returncode:
            failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+?)(?: - .*)?$", done.stdout, re.MULTILINE)
            return failed[1] if failed else test
    return ""


def make_environment(tree: Path) -> dict[str, str]:
    """Return the environment in which Python imports hpccoll from `tree`."""
    more = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "HPCCOLL_TUNING": "off"}
    return os.environ | more


if __name__ == "__main__":
    sys.exit(main())
