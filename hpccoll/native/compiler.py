"""Compiles the native extension.

`pip install` calls `compile_extension` by way of hatch_build.py. `python hpccoll/native/compiler.py` compiles the
extension of a source tree, after a change of a C file. compiler.py imports nothing of hpccoll, because most of hpccoll
cannot be imported without the extension. Any C11 compiler will do: $CC, cc, gcc, clang, or the wheel `ziglang`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
STANDARD = "-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread"


def find_compiler(cc: str | None = None) -> list[str]:
    """Return the command of a C compiler as a list of words.

    The compiler is `cc`, a command line, if it is given; else $CC, cc, gcc, clang, or the wheel `ziglang`.

    Raises:
        RuntimeError: there is no compiler; the message says what to install.
    """
    given = cc or os.environ.get("CC")
    if given:
        return shlex.split(given)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise RuntimeError(
        "hpccoll compiles an extension in C, but there is no C compiler (cc, gcc, clang, or $CC); install one: apt-get "
        "install gcc libc6-dev, or dnf install gcc, or without root: pip install ziglang, then set "
        "CC=\"$(python -c 'import ziglang; print(ziglang.__path__[0])')/zig cc\""
    )


def list_sources() -> list[Path]:
    """Return the paths of the extension's C files, sorted; an installed wheel has none."""
    return sorted(FOLDER.glob("*.c"))


def digest_sources() -> str:
    """Return a hash of all C files and headers, in hexadecimal; the compiled extension contains it."""
    digest = blake2b(digest_size=8)
    for path in sorted(FOLDER.glob("*.[ch]")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def compile_extension(output: Path | None = None, cc: str | None = None, options: Iterable[str] = ()) -> Path:
    """Compile the extension and return its path.

    Args:
        output: the path to write the extension to; None means this package's folder.
        cc: the command of the compiler; None means the one that `find_compiler` finds.
        options: further options of the compiler.

    Raises:
        RuntimeError: there is no compiler, or the compiler fails; the message contains the compiler's output.
    """
    import numpy as np

    path = output or FOLDER / f"_extension{sysconfig.get_config_var('EXT_SUFFIX')}"
    built = path.with_name(f".{path.name}.{os.getpid()}")
    includes = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    define = f'-DSOURCE_DIGEST="{digest_sources()}"'
    command = [*find_compiler(cc), *STANDARD, "-shared", define, *includes, *options, *map(str, list_sources())]
    run = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{shlex.join(command[:3])} ... failed with status {run.returncode}:\n{run.stderr}")
    built.replace(path)  # in one step, because another process may load the extension at the same time
    return path


if __name__ == "__main__":
    print(compile_extension())  # noqa: T201 - the path is the result of the command
