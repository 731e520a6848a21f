"""Choose how the nodes of a lab are isolated: by root's namespaces, by a user's namespaces, or not at all (flat)."""

from __future__ import annotations

import os
import subprocess
from enum import Enum

from hpccoll.errors import UnavailableError
from hpccoll.lab.requirements import extend_path

_NEW_NAMESPACES = ("--fork", "--pid", "--mount-proc", "--kill-child", "--net", "--mount", "--uts")


class Isolation(Enum):
    """How the nodes of a lab are isolated: by Linux namespaces made by root or by the user, or not at all (flat)."""

    ROOT = "root"
    USER = "user"
    FLAT = "flat"

    @property
    def description(self) -> str:
        """The isolation in a few words, for messages."""
        return {
            Isolation.ROOT: "namespaces, as root",
            Isolation.USER: "namespaces of an ordinary user",
            Isolation.FLAT: "flat: all daemons on 127.0.0.1; nodes share processes, /tmp and the network",
        }[self]

    @property
    def unshare_command(self) -> list[str]:
        """The `unshare` prefix of the command that starts the supervisor in new namespaces; empty in flat mode."""
        if self is Isolation.FLAT:
            return []
        # `ip` and `mount` need the capabilities kept by `--keep-caps`, which apply only inside the new namespace.
        user = ["--user", "--map-current-user", "--keep-caps"] if self is Isolation.USER else []
        return ["unshare", *user, *_NEW_NAMESPACES]

    def build_nsenter_command(self, pid: int) -> list[str]:
        """Return the `nsenter` prefix of commands that run in the namespaces of process `pid`; empty in flat mode."""
        if self is Isolation.FLAT:
            return []
        user = ["--user", "--preserve-credentials"] if self is Isolation.USER else []
        return ["nsenter", "--target", str(pid), *user, "--mount", "--net", "--uts", "--pid"]


def choose_isolation(flat: bool) -> tuple[Isolation, str]:
    """Return how to isolate nodes: not at all if `flat` is true, else the best way that works on this machine.

    The second result is the reason why no better isolation is chosen; it is empty for the best isolation.
    """
    if flat:
        return Isolation.FLAT, "asked for"
    errors: list[str] = []
    for isolation in (Isolation.ROOT, Isolation.USER) if os.geteuid() == 0 else (Isolation.USER,):
        error = _test_namespaces(isolation)
        if not error:
            return isolation, "; ".join(errors)
        errors.append(error)
    return Isolation.FLAT, "; ".join(errors)


def _test_namespaces(isolation: Isolation) -> str:
    """Run the program `true` in new namespaces of this kind; return the error message, empty if there is none."""
    command = [*isolation.unshare_command, "true"]
    environment = {"PATH": extend_path(), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def require_node_networks(isolation: Isolation, reason: str, feature: str) -> None:
    """Raise UnavailableError if the lab is flat, because `feature` needs nodes with networks of their own.

    `reason` is the reason why the lab is flat, for the message.
    """
    if isolation is Isolation.FLAT:
        raise UnavailableError(
            f"{feature} needs nodes with networks of their own, and this lab is flat ({reason}); run it as root, or "
            "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1` or `sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0`, whichever exists"
        )
