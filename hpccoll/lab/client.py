"""Talking to a lab from outside: its socket, and its first process."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.errors import CommunicationError, HpccollError, UnavailableError, UsageError
from hpccoll.lab.cluster_spec import ClusterSpec
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.state_dir import LabPaths

ANSWER_LIMIT_S = 60.0
END_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class LabClient:
    """A running lab.

    Args:
        place: where it lives.
        pid: its first process, as seen from here.
        isolation: how its nodes are kept apart.
        shape: what it was to look like.
    """

    place: LabPaths
    pid: int
    isolation: Isolation
    shape: ClusterSpec

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Have the keeper do something; return what the lab then says of itself.

        Raises:
            HpccollError: what the keeper says went wrong, or that it does not answer.
        """
        return _asked(self.place, {"do": do, **more})[0]

    def end(self) -> None:
        """Take the lab down and wait until all of it is gone."""
        with _watched(self.pid, self.isolation) as processes:
            if not processes:
                return
            try:
                self.ask("down")
            except HpccollError:
                _killed(processes)
            if not _end(processes):
                _killed(processes)
                _end(processes)


@contextmanager
def _watched(pid: int, isolation: Isolation) -> Iterator[list[int]]:
    """Yield descriptors of a lab's first process and of the one that keeps its namespaces, which ends after it."""
    with ExitStack() as stack:
        found: list[int] = []
        with suppress(OSError):
            # The parent is asked for while the child cannot have been replaced: its descriptor comes first.
            found.append(os.pidfd_open(pid))
            stack.callback(os.close, found[0])
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
            parent = int(status.partition("PPid:")[2].split()[0])
            if Path(f"/proc/{parent}/comm").read_text(encoding="ascii", errors="replace").strip() in isolation.words:
                found.append(os.pidfd_open(parent))  # it is no stranger who adopted an orphan
                stack.callback(os.close, found[1])
        yield found


def _killed(processes: Sequence[int]) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(processes[0], signal.SIGKILL)


def _end(processes: Sequence[int]) -> bool:
    """Wait for the end of all of them; return whether it came in time."""
    end = time.monotonic() + END_LIMIT_S
    return all(select.select([one], [], [], max(0.0, end - time.monotonic()))[0] for one in processes)


def kill(place: LabPaths, isolation: Isolation) -> None:
    """End a lab without a word, one that is still being built as well; wait until all of it is gone."""
    try:
        with _connected(place) as peer:
            pid = _process_behind(peer)
    except UnavailableError:
        return
    with _watched(pid, isolation) as processes:
        if processes:
            _killed(processes)
            _end(processes)


def running(folder: Path) -> LabClient:
    """Return the lab that runs in a folder.

    Raises:
        UnavailableError: there is none.
    """
    place = LabPaths(folder.resolve(), user())
    told, pid = _asked(place, {"do": "status"})
    return LabClient(place, pid, Isolation(told["isolation"]), ClusterSpec.from_dict(told["shape"]))


def is_lab_running(folder: Path) -> bool:
    """Whether a lab runs in a folder."""
    try:
        running(folder)
    except UnavailableError:
        return False
    return True


def user() -> str:
    """Return who runs this: the name, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _connected(place: LabPaths) -> socket.socket:
    """Return a connection, made by way of a descriptor: the name of a socket is short, that of a folder may be long."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(ANSWER_LIMIT_S)
    try:
        folder = os.open(place.dir, os.O_RDONLY)
        try:
            peer.connect(f"/proc/self/fd/{folder}/{place.control.name}")
        finally:
            os.close(folder)
    except OSError as error:
        peer.close()
        raise _none(place, error) from error
    return peer


def _process_behind(peer: socket.socket) -> int:
    """Return who listens at the other end: the kernel tells, and translates the number between namespaces."""
    pid, _, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _asked(place: LabPaths, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the keeper's answer, and its process."""
    with _connected(place) as peer:
        try:
            peer.sendall(json.dumps(request).encode() + b"\n")
            line = peer.makefile("rb").readline()
        except OSError as error:
            raise CommunicationError(f"the lab in {place.dir} does not answer ({error}); `hpccoll lab down`") from error
        return said(line, place), _process_behind(peer)


def _none(place: LabPaths, error: OSError) -> UnavailableError:
    why = f"{error.strerror or error}"
    return UnavailableError(f"no lab runs in {place.dir} ({why}); start one: hpccoll lab up --dir {place.dir}")


def said(line: bytes, place: LabPaths) -> dict[str, Any]:
    """Return what a keeper's line says.

    Raises:
        HpccollError: the line is an error, or none came.
    """
    if not line:
        raise CommunicationError(f"the lab in {place.dir} ended without a word; see {place.dir}/log")
    heard = json.loads(line)
    if "error" in heard:
        kind = {2: UsageError, 3: UnavailableError, 4: CommunicationError}.get(heard["status"], HpccollError)
        raise kind(heard["error"])
    told: dict[str, Any] = heard["said"]
    return told
