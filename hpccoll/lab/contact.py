"""Talking to a lab from outside: its socket, and its first process."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.errors import CommunicationError, HpccollError, UnavailableError, UsageError
from hpccoll.lab.config import Place
from hpccoll.lab.isolation import Isolation
from hpccoll.lab.shape import Shape

ANSWER_LIMIT_S = 60.0
END_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Contact:
    """A running lab.

    Args:
        place: where it lives.
        pid: its first process, as seen from here.
        isolation: how its nodes are kept apart.
        shape: what it was to look like.
    """

    place: Place
    pid: int
    isolation: Isolation
    shape: Shape

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Have the keeper do something; return what the lab then says of itself.

        Raises:
            HpccollError: what the keeper says went wrong, or that it does not answer.
        """
        return _asked(self.place, {"do": do, **more})[0]

    def end(self) -> None:
        """Take the lab down and wait until all of it is gone."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            try:
                self.ask("down")
            except HpccollError:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            if not _ends(process, END_LIMIT_S):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                _ends(process, END_LIMIT_S)
        finally:
            os.close(process)


def _ends(process: int, limit_s: float) -> bool:
    return bool(select.select([process], [], [], limit_s)[0])


def kill(place: Place) -> None:
    """End a lab without a word, one that is still being built as well; wait until all of it is gone."""
    try:
        with _connected(place) as peer:
            pid = _process_behind(peer)
        process = os.pidfd_open(pid)
    except (UnavailableError, ProcessLookupError):
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        _ends(process, END_LIMIT_S)
    finally:
        os.close(process)


def running(folder: Path) -> Contact:
    """Return the lab that runs in a folder.

    Raises:
        UnavailableError: there is none.
    """
    place = Place(folder.resolve(), user())
    told, pid = _asked(place, {"do": "status"})
    return Contact(place, pid, Isolation(told["isolation"]), Shape.from_dict(told["shape"]))


def is_running(folder: Path) -> bool:
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


def _connected(place: Place) -> socket.socket:
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


def _asked(place: Place, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the keeper's answer, and its process."""
    with _connected(place) as peer:
        try:
            peer.sendall(json.dumps(request).encode() + b"\n")
            line = peer.makefile("rb").readline()
        except OSError as error:
            raise CommunicationError(f"the lab in {place.dir} does not answer ({error}); `hpccoll lab down`") from error
        return said(line, place), _process_behind(peer)


def _none(place: Place, error: OSError) -> UnavailableError:
    why = f"{error.strerror or error}"
    return UnavailableError(f"no lab runs in {place.dir} ({why}); start one: hpccoll lab up --dir {place.dir}")


def said(line: bytes, place: Place) -> dict[str, Any]:
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
