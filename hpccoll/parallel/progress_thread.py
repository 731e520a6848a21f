"""A thread that advances collectives between nodes while a rank computes."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from hpccoll.errors import HpccollError
from hpccoll.parallel.axis_group import AxisGroup

PAUSE_S: Final = 3e-3  # between two polls


class ProgressThread:
    """A thread that lets started collectives of a group make progress while the rank computes.

    For a group whose `needs_thread` is false, no thread is started.
    """

    def __init__(self, group: AxisGroup) -> None:
        self._group = group
        self._thread: threading.Thread | None = None
        self._is_stopping = threading.Event()

    def start(self) -> None:
        """Start the thread if the group needs one and it is not running."""
        if self._group.needs_thread and self._thread is None:
            self._is_stopping.clear()
            self._thread = threading.Thread(target=self._run, name="hpccoll-progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread if it is running."""
        if self._thread is not None:
            self._is_stopping.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        """Body of the thread: let the group's collectives make progress until `stop` is called."""
        while not self._is_stopping.wait(PAUSE_S):
            with suppress(HpccollError):  # the main thread raises the error of a failed collective
                self._group.advance_started()
