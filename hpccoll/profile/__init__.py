"""`hpccoll profile`: records an unmodified program's communication, explains its cost, and predicts what would help.

layout.py describes the files of a recording; recorder.py and instrumentation.py write them, and load.py reads them.
goal_reader.py, chakra_reader.py and allprof_reader.py read traces of other tools. dependencies.py computes how long
each call waits for other ranks, and replay.py simulates the job. efficiency.py, lateness.py, slow_links.py and
calls_in_a_row.py find where time is lost, and screen.py prints the results. what_if.py predicts the effect of changes.
Each public name is imported at its first use, so that a recorded program does not import the code that reads
recordings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.profile.explanation import Explanation, explain_profile
    from hpccoll.profile.layout import NAMES_SUFFIX
    from hpccoll.profile.load import JobProfile, read_profile
    from hpccoll.profile.program import run_program
    from hpccoll.profile.reading import is_readable, read_recording
    from hpccoll.profile.recorder import RecordingOptions
    from hpccoll.profile.screen import format_screen

__all__ = [
    "NAMES_SUFFIX",
    "Explanation",
    "JobProfile",
    "RecordingOptions",
    "explain_profile",
    "format_screen",
    "is_readable",
    "read_profile",
    "read_recording",
    "run_program",
]
_FILES = {
    "NAMES_SUFFIX": "layout",
    "Explanation": "explanation",
    "JobProfile": "load",
    "RecordingOptions": "recorder",
    "explain_profile": "explanation",
    "format_screen": "screen",
    "is_readable": "reading",
    "read_profile": "load",
    "read_recording": "reading",
    "run_program": "program",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
