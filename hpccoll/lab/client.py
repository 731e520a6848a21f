"""`LabClient` sends requests to the supervisor of a running lab from outside the lab's namespaces, and ends the lab."""

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
from hpccoll.lab.state_dir import LabPaths, locate_state_dir, open_state_dir

ANSWER_LIMIT_S = 120.0  # seconds to wait for the supervisor, which itself waits for SLURM
END_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class LabClient:
    """Sends requests to a running lab (a local SLURM cluster), whose init process, the supervisor, carries them out."""

    paths: LabPaths
    pid: int  # the supervisor's process ID in this process's PID namespace
    isolation: Isolation
    spec: ClusterSpec

    def request(self, action: str, **arguments: Any) -> dict[str, Any]:
        """Send a request to the lab and return the lab's new status; raise HpccollError if the lab cannot carry it out.

        `action` is the name of a request, such as `power`, and `arguments` are the arguments of the request.
        """
        return _request(self.paths, {"action": action, **arguments})[0]

    def shut_down(self) -> None:
        """End the lab, or kill the lab if it does not end on request; return when its processes are gone."""
        with _open_processes(self.pid, self.isolation) as descriptors:
            if not descriptors:
                return
            try:
                self.request("down")
            except HpccollError:
                _kill_supervisor(descriptors)
            if not _wait_for_end(descriptors):
                _kill_supervisor(descriptors)
                _wait_for_end(descriptors)


@contextmanager
def _open_processes(pid: int, isolation: Isolation) -> Iterator[list[int]]:
    """Context manager that yields the pidfds of a lab's init process `pid` and of its parent `unshare`, if they exist.

    A pidfd is a descriptor that refers to a process.
    """
    with ExitStack() as stack:
        descriptors: list[int] = []
        with suppress(OSError):
            # The pidfd is opened first: it refers to the supervisor even if the kernel reuses the process ID later.
            descriptors.append(os.pidfd_open(pid))
            stack.callback(os.close, descriptors[0])
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
            parent = int(status.partition("PPid:")[2].split()[0])
            name = Path(f"/proc/{parent}/comm").read_text(encoding="ascii", errors="replace").strip()
            if name in isolation.unshare_command:  # else an unrelated process adopted the supervisor
                descriptors.append(os.pidfd_open(parent))
                stack.callback(os.close, descriptors[1])
        yield descriptors


def _kill_supervisor(descriptors: Sequence[int]) -> None:
    """Send SIGKILL to a lab's init process, whose pidfd is the first of `descriptors`; return without waiting."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)


def _wait_for_end(descriptors: Sequence[int]) -> bool:
    """Wait at most END_LIMIT_S seconds until the processes with these pidfds end; return whether all have ended."""
    end = time.monotonic() + END_LIMIT_S
    return all(select.select([fd], [], [], max(0.0, end - time.monotonic()))[0] for fd in descriptors)


def kill_lab(paths: LabPaths, isolation: Isolation) -> None:
    """Kill the lab whose files are at `paths`, even if it is starting; wait up to END_LIMIT_S seconds for its end."""
    try:
        with _connect(paths) as connection:
            pid, _ = read_peer(connection)
    except UnavailableError:
        return
    with _open_processes(pid, isolation) as descriptors:
        if descriptors:
            _kill_supervisor(descriptors)
            _wait_for_end(descriptors)


def connect_lab(state_dir: Path) -> LabClient:
    """Return a client of the lab that runs in `state_dir`; raise UnavailableError if no lab runs there."""
    paths = LabPaths(locate_state_dir(state_dir), get_user_name())
    status, pid = _request(paths, {"action": "status"})
    return LabClient(paths, pid, Isolation(status["isolation"]), ClusterSpec.from_dict(status["shape"]))


def is_lab_running(state_dir: Path) -> bool:
    """Whether a lab runs in `state_dir` and answers a request for its status."""
    try:
        connect_lab(state_dir)
    except UnavailableError:
        return False
    return True


def get_user_name() -> str:
    """Return the name of this process's effective user, or the user ID as a string if the user has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _connect(paths: LabPaths) -> socket.socket:
    """Return a connection to the Unix socket of the lab whose files are at `paths`.

    Connects by a short path through /proc, because Linux limits a socket's path to 107 bytes.

    Raises:
        UsageError: the state directory, or the process that answers, belongs to another user.
        UnavailableError: no lab runs there.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_LIMIT_S)
    try:
        descriptor = open_state_dir(paths.dir)
        try:
            connection.connect(f"/proc/self/fd/{descriptor}/{paths.socket.name}")
        finally:
            os.close(descriptor)
        _require_own_peer(connection, paths)
    except UsageError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        missing = f"no lab runs in {paths.dir} ({error.strerror or error})"
        raise UnavailableError(f"{missing}; start one: hpccoll lab up --dir {paths.dir}") from error
    return connection


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process ID and the user ID of the process at the other end of a Unix socket's connection.

    The two IDs are translated to this process's PID and user namespaces.
    """
    pid, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(user)


def _require_own_peer(connection: socket.socket, paths: LabPaths) -> None:
    """Raise UsageError if a process of another user answers on a lab's socket.

    Commands in the lab enter the namespaces of the process that answers, so this process must be trusted.
    """
    _, user = read_peer(connection)
    if user != os.geteuid():
        raise UsageError(
            f"the lab in {paths.dir} belongs to user {user}, not to user {os.geteuid()}, who runs this command; name "
            "another --dir"
        )


def _request(paths: LabPaths, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Send a request to a running lab, wait for the answer, and return the result and the supervisor's process ID."""
    with _connect(paths) as connection:
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline()
        except OSError as error:
            silent = f"the lab in {paths.dir} does not answer ({error})"
            raise CommunicationError(f"{silent}; end it: hpccoll lab down --dir {paths.dir}") from error
        return parse_answer(line, paths), read_peer(connection)[0]


def parse_answer(line: bytes, paths: LabPaths) -> dict[str, Any]:
    """Return the result in a lab's answer, a line of JSON; raise an error if the answer is an error or empty."""
    if not line:
        raise CommunicationError(f"the lab in {paths.dir} ended without an error message; see {paths.dir}/log")
    answer = json.loads(line)
    if "error" in answer:
        kind = {2: UsageError, 3: UnavailableError, 4: CommunicationError}.get(answer["status"], HpccollError)
        raise kind(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result
