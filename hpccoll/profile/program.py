"""Runs a Python program as `python` does, with its communication recorded."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path

from hpccoll.processes.python_program import require_module, require_script
from hpccoll.profile.instrumentation import Instrumentation
from hpccoll.profile.recorder import RecordingOptions


def run_program(words: list[str], *, is_module: bool, uses_drop_in: bool, options: RecordingOptions) -> int | None:
    """Run a Python program in this process and record its communication; return this process's rank.

    The result is None if the program used none of mpi4py, torch.distributed and hpccoll.

    Args:
        words: the path of the script or the name of the module, and the program's arguments.
        is_module: whether the first word is the name of a module.
        uses_drop_in: whether collectives of mpi4py run over hpccoll, as with `python -m hpccoll.mpi4py`.
        options: what the recording contains, and its directory.

    Raises:
        UsageError: there is no such script, or the files cannot be written.
    """
    if not is_module:
        require_script(words[0])
    if uses_drop_in:
        from hpccoll.mpi4py.configuration import CHOICES
        from hpccoll.mpi4py.installation import install_at_import

        install_at_import()
        options = replace(options, algorithms=os.environ.get(CHOICES, ""))
    instrumentation = Instrumentation(options)
    instrumentation.install()  # the drop-in must be installed before, so that its classes are recorded
    sys.argv = words
    try:
        if is_module:
            sys.path.insert(0, str(Path.cwd()))
            require_module(words[0])
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(words[0]).resolve().parent)  # as `python SCRIPT` sets it
            runpy.run_path(words[0], run_name="__main__")
    finally:
        if instrumentation.recorder is not None:
            instrumentation.recorder.end()
    return None if instrumentation.recorder is None else instrumentation.recorder.rank
