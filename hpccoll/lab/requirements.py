"""The system programs that a lab needs, and the Debian packages that contain them."""

from __future__ import annotations

import os
import shutil

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
_SYSTEM_DIRS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")


def extend_path() -> str:
    """Return PATH with /usr/sbin and other system directories appended, which an ordinary user's PATH often lacks."""
    dirs = [name for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    return os.pathsep.join([*dirs, *(name for name in _SYSTEM_DIRS if name not in dirs)])


def require_programs() -> None:
    """Check that all programs that a lab needs are installed.

    Raises:
        UnavailableError: programs are missing; the message names them and the command that installs them.
    """
    path = extend_path()
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        packages = " ".join(sorted({PROGRAMS[name] for name in missing}))
        raise UnavailableError(
            f"a lab needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed "
            f"(packages: {packages}); on Debian or Ubuntu: {INSTALL}"
        )
