"""The flight recorder: a file per rank that keeps the latest collectives, sends and receives of the rank.

`FlightRecorder` writes the file, a ring of entries in mapped memory, which outlives the process even if a signal kills
it. `read_recording` reads one file, and `read_recordings` the files of all ranks of a job. layout.py describes the
format. Each name is imported at its first use, because a process that only records needs none of the readers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.runtime.recorder.clock_model import ClockModel
    from hpccoll.runtime.recorder.flight_recorder import FlightRecorder, choose_directory
    from hpccoll.runtime.recorder.job_recordings import read_recordings
    from hpccoll.runtime.recorder.layout import CallKind
    from hpccoll.runtime.recorder.recording import RecordedCall, RecordedCommunicator, Recording, read_recording
    from hpccoll.runtime.recorder.torch_format import write_torch_traces

__all__ = [
    "CallKind", "ClockModel", "FlightRecorder", "RecordedCall", "RecordedCommunicator", "Recording", "choose_directory",
    "read_recording", "read_recordings", "write_torch_traces",
]  # fmt: skip
_MODULES = ("layout", "clock_model", "flight_recorder", "recording", "job_recordings", "torch_format")


def __getattr__(name: str) -> Any:
    """Import the modules of the package, one after the other, until one of them has an exported name."""
    if name in __all__:
        for module in _MODULES:
            home = import_module(f"{__name__}.{module}")
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'hpccoll.runtime.recorder' has no attribute {name!r}")
