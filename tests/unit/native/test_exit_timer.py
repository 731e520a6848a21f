"""A process ends after a time, also if a thread holds the GIL, as mpi4py does during MPI_Abort."""

from __future__ import annotations

import subprocess
import sys

import pytest

HOLDS_THE_GIL = """
import ctypes
from hpccoll.native import exit_after
exit_after(0.2, 7)
exit_after(0.1, 8)
ctypes.PyDLL(None).sleep(30)
"""


@pytest.mark.timeout(20)
def test_a_thread_that_holds_the_gil_does_not_stop_the_end():
    done = subprocess.run([sys.executable, "-c", HOLDS_THE_GIL], timeout=10, check=False)
    assert done.returncode == 7
