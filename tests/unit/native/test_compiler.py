"""The compilation of the extension: the choice of the compiler, and errors if there is none or a C file has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hpccoll
from hpccoll.native import compiler
from tests.requirements import skip_or_fail

PACKAGE = Path(hpccoll.__file__).parent


def copy_package(folder: Path) -> Path:
    """Copy the packages that `hpccoll.native` needs, without the compiled extension; return the copy of native."""
    native = folder / "hpccoll" / "native"
    shutil.copytree(PACKAGE / "native", native, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "hpccoll" / "__init__.py").write_text("")
    return native


def import_native(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from hpccoll.native import Program; print(Program)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_a_source_tree_says_what_to_run_before_and_after_a_change(tmp_path):
    native = copy_package(tmp_path)
    missing = import_native(tmp_path)
    command = f"python {native}/compiler.py"
    assert "was not compiled" in missing.stderr
    assert command in missing.stderr
    subprocess.run([sys.executable, str(native / "compiler.py")], check=True, timeout=120)
    assert "Program" in import_native(tmp_path).stdout
    later = native / "half.c"
    later.touch()  # as after a checkout: the content is the same
    assert "Program" in import_native(tmp_path).stdout
    later.write_text(later.read_text() + "\n// changed\n")
    changed = import_native(tmp_path)
    assert "have changed since the extension was compiled" in changed.stderr
    assert command in changed.stderr


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(compiler, "find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match="apt-get install gcc") as caught:
        compiler.find_compiler()
    assert "pip install ziglang" in str(caught.value)


def test_the_compiler_of_the_wheel_ziglang_comes_last(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(compiler, "find_spec", lambda _: object())
    assert compiler.find_compiler() == [sys.executable, "-m", "ziglang", "cc"]
    monkeypatch.setenv("CC", "ccache gcc")
    assert compiler.find_compiler() == ["ccache", "gcc"]


def test_an_error_of_the_compiler_is_shown(tmp_path):
    with pytest.raises(RuntimeError, match="no-such-option"):
        compiler.compile_extension(tmp_path / "x.so", options=["-fno-such-option"])


@pytest.mark.slow
def test_the_extension_compiles_for_another_processor(tmp_path):
    """NEON in place of AVX, and the waits without the pause of x86."""
    if find_spec("ziglang") is None:
        cross = shutil.which("aarch64-linux-gnu-gcc")
        if cross is None:
            skip_or_fail("neither ziglang nor aarch64-linux-gnu-gcc is installed")
        command = cross
    else:
        command = f"{sys.executable} -m ziglang cc -target aarch64-linux-gnu"
    assert compiler.compile_extension(tmp_path / "arm.so", command).stat().st_size > 0
