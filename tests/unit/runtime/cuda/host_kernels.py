"""Runs the source of the device's kernels on the host: compiled as plain C++, with loops in place of threads."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpccoll.runtime.cuda.kernels import KernelSpec, generate_source

COMPILER = shutil.which("g++")
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-w")
THREADS = 37  # fewer than a block has, and odd: rows end anywhere in the stride


def together(kernels: Sequence[KernelSpec], entry: str) -> str:
    """Return the text of several kernels as one, each in a namespace, its entry numbered."""
    texts = (generate_source(kernel).replace(f" {entry}(", f" {entry}_{at}(") for at, kernel in enumerate(kernels))
    return "\n".join(f"namespace k{at} {{\n{text}\n}}" for at, text in enumerate(texts))


class HostKernels:
    """Kernels by g++ in `folder`, compiled when they are asked for, many at once where they are known before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[KernelSpec, Callable[..., None]] = {}

    def compile(self, kernels: Sequence[KernelSpec]) -> None:
        """Compile those that are not yet."""
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._entries]
        if not new:
            return
        text = together(new, "run_on_host")
        stem = self._folder / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        stem.with_suffix(".cpp").write_text(text, encoding="utf-8")
        built = stem.with_suffix(".so")
        done = subprocess.run(
            [COMPILER or "g++", *FLAGS, str(stem.with_suffix(".cpp")), "-o", str(built)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr[-3000:]
        library = ctypes.CDLL(str(built))
        self._entries |= {kernel: getattr(library, f"run_on_host_{at}") for at, kernel in enumerate(new)}

    def compile_kernel(self, kernel: KernelSpec) -> Any:
        """Return a kernel's entry, as `CudaRuntime.compile_kernel` does."""
        self.compile([kernel])
        return self._entries[kernel]


def run(entry: Any, rows: int, parameters: int) -> None:
    """Run a kernel now, on the parameters that `CudaRuntime.launch_kernel` is given."""
    words = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
    entry(ctypes.c_void_p(words), ctypes.c_int(rows), ctypes.c_ulonglong(THREADS))
