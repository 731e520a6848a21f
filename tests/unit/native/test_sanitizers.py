"""The interpreter, its check and the half-precision functions under ASan and UBSan, and the waits under TSan."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import hpccoll
from tests.requirements import skip_or_fail

HERE = Path(__file__).parent
NATIVE = Path(hpccoll.__file__).parent / "native"
CHECKED = "interpreter.c", "check.c", "reductions.c", "half.c"


def compile_driver(folder: Path, driver: str, sources: tuple[str, ...], sanitizers: str, **changes: str) -> Path:
    """Compile a driver with sanitizers; `changes` maps text of the sources to what replaces it."""
    compiler = shutil.which("gcc") or skip_or_fail("gcc is not installed")
    copied = []
    for path in sorted(NATIVE.glob("*.[ch]")):
        text = path.read_text()
        if path.name in sources:
            for old, new in changes.items():
                text = text.replace(old, new)
            copied.append(str(folder / path.name))
        (folder / path.name).write_text(text)
    program = folder / "driver"
    flags = ["-std=c11", "-g", "-O1", "-DHPCCOLL_SANITIZED", "-fno-sanitize-recover=all", f"-fsanitize={sanitizers}"]
    command = [compiler, *flags, "-Wall", "-Wextra", f"-I{folder}", str(HERE / driver), *copied, "-lpthread"]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=120)
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], capture_output=True, text=True, timeout=240, check=False)


def test_whatever_the_check_accepts_stays_inside_of_its_memories(tmp_path):
    done = run(compile_driver(tmp_path, "drive_interpreter.c", CHECKED, "address,undefined"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500  # the driver draws enough programs that are right


MUTANTS = {
    "a size is not compared": ("offset <= program->limits[memory] - nbytes", "offset <= program->limits[memory]"),
    "a negative offset is accepted": ("|| offset < 0 || nbytes < 0", "|| nbytes < 0"),
    "a memory too far is accepted": ("memory >= program->memories", "memory > program->memories"),
    "the right operand is not checked": (
        "step->right, step->right_offset, step->nbytes)) {\n        return \"the right operand is outside",
        "step->left, step->left_offset, step->nbytes)) {\n        return \"the right operand is outside",
    ),
    "the input may be written": ("step->out == INPUT", "step->out < INPUT"),
    "a group may end after the program": ("members > program->count - at - 1", "members > program->count - at"),
    "a group may have any sizes": ("|| first[i].nbytes != first->nbytes", ""),
    "a group may contain groups": ("first[i].code > DIVIDE", "first[i].code > FENCE"),
    "a reduction may be missing": ("if (!reducer || (", "if (reducer && ("),
    "the last tile is a whole one": ("total - begin < tile ? total - begin : tile", "tile"),
    "a group begins one instruction late": ("step + is_group, members", "step + is_group + 1, members"),
    "a half block is too long": ("count - start < BLOCK ? count - start : BLOCK", "BLOCK"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_check_or_interpreter_is_seen(tmp_path, mutant):
    old, new = MUTANTS[mutant]
    assert any(old in (NATIVE / name).read_text() for name in CHECKED)
    done = run(compile_driver(tmp_path, "drive_interpreter.c", CHECKED, "address,undefined", **{old: new}))
    assert done.returncode != 0


def test_waits_order_the_data_of_the_ranks(tmp_path):
    done = run(compile_driver(tmp_path, "drive_waits.c", ("waits.c",), "thread"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3000


def test_a_wait_that_acquires_nothing_is_seen(tmp_path):
    program = compile_driver(tmp_path, "drive_waits.c", ("waits.c",), "thread")
    header = (tmp_path / "waits.h").read_text()
    (tmp_path / "waits.h").write_text(header.replace("memory_order_acquire", "memory_order_relaxed"))
    gcc = shutil.which("gcc") or skip_or_fail("gcc is not installed")
    flags = ["-std=c11", "-O1", "-fsanitize=thread", f"-I{tmp_path}"]
    subprocess.run(
        [gcc, *flags, str(HERE / "drive_waits.c"), str(tmp_path / "waits.c"), "-lpthread", "-o", str(program)],
        check=True,
        timeout=120,
    )
    assert run(program).returncode != 0
