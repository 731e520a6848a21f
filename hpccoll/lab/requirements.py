"""The system programs that a lab needs, and the Debian packages that contain them."""

from __future__ import annotations

import os
import shutil

from hpccoll.errors import UnavailableError

PROGRAMS_OF_PACKAGE = {
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurm-client": ("srun", "sbatch", "sinfo"),
    "iproute2": ("ip", "tc"),
    "util-linux": ("unshare", "nsenter", "setpriv", "setsid"),
    "mount": ("mount",),
}
INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client iproute2"
_SYSTEM_DIRS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")


def extend_path() -> str:
    """Return PATH with /usr/sbin and other system directories appended, which an ordinary user's PATH often lacks."""
    dirs = [name for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    return os.pathsep.join([*dirs, *(name for name in _SYSTEM_DIRS if name not in dirs)])


def require_programs() -> None:
    """Raise UnavailableError, with a remedy, if programs that a lab needs, such as slurmctld, are missing."""
    path = extend_path()
    package_of = {name: package for package, names in PROGRAMS_OF_PACKAGE.items() for name in names}
    missing = [name for name in package_of if shutil.which(name, path=path) is None]
    if missing:
        packages = " ".join(sorted({package_of[name] for name in missing}))
        raise UnavailableError(
            f"a lab needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed "
            f"(packages: {packages}); on Debian or Ubuntu: {INSTALL}"
        )
