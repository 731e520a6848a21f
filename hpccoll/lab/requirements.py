"""What a lab needs of the system: programs that Debian and its kin have in four packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from hpccoll.errors import UnavailableError

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "sinfo": "slurm-client",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
}
INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client iproute2"
_SYSTEM = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")


def extend_path() -> str:
    """Return PATH with the folders of daemons, which an ordinary user's often lacks."""
    given = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join([*(each for each in given if each), *(each for each in _SYSTEM if each not in given)])


def missing(programs: Iterable[str] = PROGRAMS) -> list[str]:
    """Return the programs that are not installed."""
    path = extend_path()
    return [name for name in programs if shutil.which(name, path=path) is None]


def require() -> None:
    """Do nothing if everything is installed.

    Raises:
        UnavailableError: something is not; the message names it and the command that installs it.
    """
    absent = missing()
    if absent:
        packages = " ".join(sorted({PROGRAMS[name] for name in absent}))
        raise UnavailableError(
            f"a lab needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed "
            f"(of {packages}); on Debian or Ubuntu: {INSTALL}"
        )
