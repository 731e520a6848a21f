"""How nodes are kept apart here: namespaces as root, namespaces of an ordinary user, or not at all (flat)."""

from __future__ import annotations

import os
import subprocess
from enum import Enum

from hpccoll.errors import UnavailableError
from hpccoll.lab.requirements import extend_path

_APART = ("--fork", "--pid", "--mount-proc", "--kill-child", "--net", "--mount", "--uts")


class Isolation(Enum):
    """A way to keep nodes apart, best first."""

    ROOT = "root"
    USER = "user"
    FLAT = "flat"

    @property
    def means(self) -> str:
        """What it is, in words."""
        return {
            Isolation.ROOT: "namespaces, as root",
            Isolation.USER: "namespaces of an ordinary user",
            Isolation.FLAT: "flat: daemons side by side on 127.0.0.1; nodes share processes, /tmp and the network",
        }[self]

    @property
    def words(self) -> list[str]:
        """The command that starts the lab's first process in its own namespaces; it dies with that command."""
        if self is Isolation.FLAT:
            return []
        # Capabilities in the user's own namespace stay with its programs (ip, mount); none of them reach outside.
        user = ["--user", "--map-current-user", "--keep-caps"] if self is Isolation.USER else []
        return ["unshare", *user, *_APART]

    def entering(self, pid: int) -> list[str]:
        """Return the command that brings another one to the control node, whose first process has that `pid`."""
        if self is Isolation.FLAT:
            return []
        user = ["--user", "--preserve-credentials"] if self is Isolation.USER else []
        return ["nsenter", "--target", str(pid), *user, "--mount", "--net", "--uts", "--pid"]


def find(flat: bool) -> tuple[Isolation, str]:
    """Return the best way that works here, found by trying, and why not a better one (empty where it is the best).

    Args:
        flat: whether flat mode was asked for.
    """
    if flat:
        return Isolation.FLAT, "asked for"
    refusals = []
    for isolation in (Isolation.ROOT,) if os.geteuid() == 0 else ():
        refusals.append(_refusal(isolation))
        if not refusals[-1]:
            return isolation, ""
    refusals.append(_refusal(Isolation.USER))
    if not refusals[-1]:
        return Isolation.USER, "; ".join(refusals[:-1])
    return Isolation.FLAT, "; ".join(refusals)


def _refusal(isolation: Isolation) -> str:
    """Return why the namespaces cannot be had; empty if they can."""
    tried = [*isolation.words, "true"]
    environment = {"PATH": extend_path(), "LC_ALL": "C"}
    try:
        done = subprocess.run(tried, capture_output=True, text=True, timeout=10, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def require_node_networks(isolation: Isolation, why: str, wanted: str) -> None:
    """Refuse what only nodes with networks of their own have.

    Raises:
        UnavailableError: the lab is flat.
    """
    if isolation is Isolation.FLAT:
        raise UnavailableError(
            f"{wanted} needs nodes with networks of their own, and this lab is flat ({why}); run it as root, or allow "
            "user namespaces (sysctl kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_"
            "userns=0, where these exist)"
        )
