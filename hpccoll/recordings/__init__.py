"""Recordings: the files that the flight recorders of a job's ranks have written, and their readers.

layout.py and process_notes.py describe the format. `read_recording` reads one file, and `read_recordings` the files of
all ranks of a job. job_evidence.py makes the input of the crash analysis (hpccoll/crash) from recordings, and
torch_format.py translates recordings for PyTorch's analyser. Each name is imported at its first use, because a process
that only records needs none of the readers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.recordings.clock_model import ClockModel
    from hpccoll.recordings.job_recordings import read_recordings
    from hpccoll.recordings.layout import CallKind
    from hpccoll.recordings.recording import RecordedCall, RecordedCommunicator, Recording, read_recording
    from hpccoll.recordings.torch_format import write_torch_traces

__all__ = [
    "CallKind", "ClockModel", "RecordedCall", "RecordedCommunicator", "Recording", "read_recording", "read_recordings",
    "write_torch_traces",
]  # fmt: skip
_MODULES = ("layout", "clock_model", "recording", "job_recordings", "torch_format")


def __getattr__(name: str) -> Any:
    """Return the object of an exported name: import the package's modules in turn until one of them has the name."""
    if name in __all__:
        for module in _MODULES:
            home = import_module(f"{__name__}.{module}")
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'hpccoll.recordings' has no attribute {name!r}")
