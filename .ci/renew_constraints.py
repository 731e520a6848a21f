"""Prints the exact versions that pip selects today for both environments of the Makefile: `make constraints`.

python renew_constraints.py TORCH REQUIREMENT...: TORCH is left out, because its build depends on the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

HEADER = """# The exact versions that `make` installs in .venv and .venv-openmpi; `make constraints` writes this file.
# torch is not in it: the variable TORCH of the Makefile selects its version, and the package index its build.
"""


def main(torch: str, *requirements: str) -> None:
    """Print a constraints file for the requirements and all packages on which they depend."""
    words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", torch, *requirements]
    done = subprocess.run([sys.executable, "-m", "pip", *words], stdout=subprocess.PIPE, check=True)
    found = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(done.stdout)["install"]}
    left_out = "torch", "triton", "hpccoll", "nvidia-", "cuda-"
    names = sorted((name for name in found if not name.lower().startswith(left_out)), key=str.lower)
    sys.stdout.write(HEADER + "".join(f"{name.lower().replace('_', '-')}=={found[name]}\n" for name in names))


if __name__ == "__main__":
    main(*sys.argv[1:])
