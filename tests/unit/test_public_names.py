"""The public names of `import hpccoll`, and that it does not load the modules that they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hpccoll
from hpccoll import errors


def test_completion_shows_every_public_name():
    assert {"Communicator", "premul_sum", "HpccollError", "__version__"} <= set(dir(hpccoll))
    assert set(hpccoll.__all__) <= set(dir(hpccoll))


CONSTANTS = ("ANY_SOURCE", "PROC_NULL")


@pytest.mark.parametrize("name", sorted(set(hpccoll.__all__) - set(CONSTANTS)))
def test_every_public_name_can_be_imported(name):
    assert getattr(hpccoll, name).__name__ == name


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_those_of_mpi4py(name):
    from mpi4py import MPI

    assert getattr(hpccoll, name) == getattr(MPI, name)


def test_every_exception_is_a_public_name():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    assert len(kinds) > 10
    for kind in kinds:
        assert getattr(hpccoll, kind.__name__) is kind
        assert issubclass(kind, hpccoll.HpccollError)


def test_importing_hpccoll_loads_no_mpi_and_no_numpy():
    code = "import sys, hpccoll; dir(hpccoll); print({'mpi4py', 'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
