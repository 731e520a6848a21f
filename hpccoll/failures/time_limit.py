"""Reads HPCCOLL_TIMEOUT, the time limit of calls; imports little, because programs start faster then."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from hpccoll.errors import UsageError

TIMEOUT: Final = "HPCCOLL_TIMEOUT"


def read_timeout() -> float | None:
    """Return the seconds of HPCCOLL_TIMEOUT; None if it is not set.

    Raises:
        UsageError: the value is not a positive number.
    """
    setting = os.environ.get(TIMEOUT, "")
    if not setting:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(setting)) < float("inf"):
            return seconds
    raise UsageError(f"{TIMEOUT}={setting!r} is not a number of seconds above 0; set it to seconds, or unset it")
