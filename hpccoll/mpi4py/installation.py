"""Replaces mpi4py's COMM_WORLD and COMM_SELF by communicators whose collectives run over hpccoll."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from hpccoll.mpi4py.configuration import get_configuration

_MPI = "mpi4py.MPI"


def load_accelerated_mpi() -> ModuleType:
    """Import mpi4py.MPI, which initializes MPI, replace its COMM_WORLD and COMM_SELF, and return the module."""
    install_at_import()
    from mpi4py import MPI

    _replace_constants(MPI)
    return MPI


def install_at_import() -> None:
    """Let a later import of mpi4py.MPI replace its COMM_WORLD and COMM_SELF; nothing is imported now.

    Does nothing with HPCCOLL_MPI4PY=off.
    """
    if not get_configuration().runs_collectives:
        return
    if not any(isinstance(finder, _MpiFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MpiFinder())


class _MpiFinder(MetaPathFinder):
    """A finder of Python's import system for mpi4py.MPI, which is then loaded by `_MpiLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import specification of mpi4py.MPI with an `_MpiLoader`; None for other modules."""
        if fullname != _MPI:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _MpiLoader(spec.loader)
                return spec
        return PathFinder.find_spec(fullname, path, target)


class _MpiLoader(Loader):
    """Loads mpi4py.MPI by another loader, then replaces its COMM_WORLD and COMM_SELF."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module that the other loader creates, or None, which lets Python create the module."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load mpi4py.MPI, initialize MPI by the settings in `mpi4py.rc`, and replace COMM_WORLD and COMM_SELF."""
        import mpi4py

        settings = mpi4py.rc
        # With mpi4py's default settings, hpccoll itself initializes MPI, after it has checked the launcher.
        is_default = settings.initialize and settings.threads and settings.thread_level == "multiple"
        finalize = settings.finalize
        if is_default:
            settings.initialize, settings.finalize = False, True if finalize is None else finalize
        try:
            self._loader.exec_module(module)
        finally:
            if is_default:
                settings.initialize, settings.finalize = True, finalize
        if is_default:
            from hpccoll.runtime import job

            sys.modules[_MPI] = module
            job.load_mpi()
        _replace_constants(module)


def _replace_constants(module: ModuleType) -> None:
    """Replace COMM_WORLD and COMM_SELF of `module`, mpi4py.MPI, unless this was done before or HPCCOLL_MPI4PY is off.

    With HPCCOLL_TIMEOUT, the call also makes the hpccoll communicator of COMM_WORLD, which is collective.
    """
    from hpccoll.failures.time_limit import read_timeout
    from hpccoll.mpi4py.acceleration import find_acceleration
    from hpccoll.mpi4py.call_summary import count_calls, is_counting
    from hpccoll.mpi4py.communicators import (
        NewCommunicators,
        accelerate,
        list_intracommunicator_classes,
        reduce_plain,
    )

    if not get_configuration().runs_collectives or isinstance(module.COMM_WORLD, NewCommunicators):
        return
    copyreg.pickle(module.Intracomm, reduce_plain)
    if is_counting():
        count_calls(list_intracommunicator_classes())
    constants = vars(module)
    for name in ("COMM_WORLD", "COMM_SELF"):
        constants[name] = accelerate(constants[name])
    if read_timeout() is not None and module.Is_initialized():  # a rank that leaves before its first call is reported
        find_acceleration(module.COMM_WORLD).open()
