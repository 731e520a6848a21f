"""A script or module that Python cannot run is refused with a remedy, before the ranks connect."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.processes.launched_rank import RANK_VARIABLES
from hpccoll.processes.python_program import require_module, require_script


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "there is no such script"),
        (b"\x7fELF\x02\0\0", "is not a Python program"),
        (b"for x in\n", r"is not a Python program \(line 1: invalid syntax\)"),
        (b"x = '\xff'\n", "is not a Python program"),
    ],
    ids=["missing", "binary", "wrong syntax", "not UTF-8"],
)
def test_a_file_that_python_cannot_run_is_refused(tmp_path: Path, contents: bytes | None, message: str) -> None:
    file = tmp_path / "script.py"
    if contents is not None:
        file.write_bytes(contents)
    with pytest.raises(UsageError, match=f"{message}.*-m and the name of a module"):
        require_script(str(file))


def test_a_directory_needs_a_main_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory without a file __main__"):
        require_script(str(tmp_path))
    (tmp_path / "__main__.py").write_text("print('ran')\n")
    require_script(str(tmp_path))


def test_scripts_archives_and_pipes_are_accepted(tmp_path: Path) -> None:
    script, archive, pipe = tmp_path / "script", tmp_path / "program.pyz", tmp_path / "pipe"
    script.write_bytes(b"# coding: latin-1\nx = '\xe4'\n")
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("__main__.py", "print('ran')\n")
    os.mkfifo(pipe)
    for file in (script, archive, pipe):
        require_script(str(file))


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module", "script.py", ".x", ""])
def test_a_module_that_python_cannot_run_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"Python finds no such module that can be run; .* without \.py"):
        require_module(name)


@pytest.mark.parametrize("name", ["json.tool", "unittest", "timeit"])
def test_a_module_that_python_can_run_is_accepted(name: str) -> None:
    require_module(name)


@pytest.mark.parametrize("name", ["program", "program.steps", "program.missing"])
def test_the_package_of_a_module_is_not_imported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").write_text("import a_missing_dependency\n")
    (package / "__main__.py").touch()
    (package / "steps.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    require_module(name)
    assert "program" not in sys.modules


@pytest.mark.parametrize(
    ("launcher", "source", "printed"),
    [
        (
            "hpccoll.mpi4py",
            "from mpi4py import MPI; print(type(MPI.COMM_WORLD).__module__)",
            "hpccoll.mpi4py.communicators",
        ),
        ("hpccoll.torch", "import os; print(os.environ.get('WORLD_SIZE'))", "1"),
    ],
)
def test_a_launcher_is_ready_before_it_imports_the_package(
    launcher: str, source: str, printed: str, tmp_path: Path
) -> None:
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").write_text(f"{source}\n")
    (package / "steps.py").touch()
    clean = {name: value for name, value in os.environ.items() if name not in (*RANK_VARIABLES, "WORLD_SIZE")}
    run = [sys.executable, "-m", launcher, "-m", "program.steps"]
    done = subprocess.run(run, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.strip(), done.returncode) == (printed, 0), done.stderr
