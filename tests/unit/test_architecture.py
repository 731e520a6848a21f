"""The rules of the source tree, read from the source itself: floors, imports, sizes, docstrings.

docs/architecture.md draws the floors. A file imports only from lower floors or from its own package, so that each floor
can be understood, tested and replaced without those above it; plans can be written and proven without MPI.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpccoll.algorithms
import hpccoll.plan

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "hpccoll").rglob("*.py"))

FLOORS = {
    "errors": 0,
    "units": 0,
    "optional_packages": 0,
    "text_table": 0,
    "private_files": 0,
    "printable": 0,
    "atomic_files": 0,
    "plan": 1,
    "processes": 1,
    "algorithms": 2,
    "crash": 2,
    "lowering": 2,
    "raster": 2,
    "records": 2,
    "schedules": 2,
    "native": 2,
    "arrays": 3,
    "recordings": 3,
    "selection": 3,
    "statistics": 3,
    "runtime": 4,
    "library_rules": 4,
    "failures": 5,
    "communicator": 6,
    "demo": 7,
    "doctor": 7,
    "lab": 7,
    "mpi4py": 7,
    "parallel": 7,
    "predict": 7,
    "preflight": 7,
    "synthesis": 7,
    "torch": 7,
    "torch_autoload": 8,
    "sizing": 8,
    "peers": 8,
    "measure": 9,
    "compare": 10,
    "barrier_suite": 10,
    "parity": 10,
    "report": 10,
    "train": 10,
    "profile": 11,
    "cli": 12,
    "__init__": 13,  # the front door shows what is behind it; what others take from it is placed below
}
INNER_FLOORS = {  # within a package; a module may import from its own entry and from lower floors
    "plan": {
        **dict.fromkeys(
            ("step", "rounds", "moves", "operation", "plan", "groups", "messages", "schedule", "serial_replay"),
            (0, "vocabulary"),
        ),
        "proof": (1, "proof"),
        "simulation": (1, "simulation"),
        "interchange": (1, "interchange"),
        "drawing": (2, "drawing"),
        "published": (2, "published"),
        "__init__": (3, "__init__"),  # exports the vocabulary and the main functions to other packages
    },
    "runtime": {
        **{
            name: (0, name)
            for name in (
                "backoff",
                "forks",
                "running_clock",
                "signal_errors",
                "recorder",
            )
        },
        **{name: (1, name) for name in ("job", "progress")},
        **{
            name: (2, name)
            for name in (
                "agreement",
                "collective_call",
                "executable",
                "started_operations",
                "work",
            )
        },
        **{name: (3, name) for name in ("argument_check", "arguments", "address_space", "node_memory", "queued_run")},
        **{name: (4, name) for name in ("plan_executable", "plain_arrays")},
        "native_plan": (5, "native_plan"),
        "messages": (6, "messages"),
        "shared_memory": (6, "shared_memory"),
        "two_level": (7, "two_level"),
        "cuda": (7, "cuda"),
        "call_cache": (8, "call_cache"),
        "call_selector": (8, "call_selector"),
        "engine": (9, "engine"),
        "__init__": (10, "__init__"),
    },
}
FRONT_DOOR = {"__version__": 0}  # any other name taken from `hpccoll` itself comes from the communicator's floor
PURE = {"plan", "algorithms", "lowering", "schedules"}
PURE_MAY_TAKE = {"numpy"}
OUTSIDE_WORLD = {"asyncio", "multiprocessing", "os", "pathlib", "socket", "subprocess", "tempfile", "threading", "time"}
DEVICES = {"mpi4py", "cupy", "cupyx", "torch"}
DRIVES_DEVICES = {"arrays", "failures", "runtime", "peers", "torch", "parity", "mpi4py", "profile"}
COMPUTES = {"parallel", "train"}  # rooms that compute with torch; what they send goes through the communicator
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "common", "misc"}
NOT_FOR_A_COMMUNICATOR = {  # imported when a call needs them, because imports dominate the start of many ranks
    *("cupy", "importlib.metadata", "msgspec", "psutil", "subprocess", "torch"),
    *(f"hpccoll.plan.{name}" for name in ("drawing", "interchange", "proof", "rounds", "serial_replay", "simulation")),
    *(f"hpccoll.runtime.{name}" for name in ("cuda", "shared_memory", "two_level")),
    *(
        "hpccoll.algorithms.ring",
        "hpccoll.crash",
        "hpccoll.lowering",
        "hpccoll.processes.command",
        "hpccoll.records",
        "hpccoll.recordings.job_evidence",
        "hpccoll.runtime.messages.executable",
    ),
}
# `Communicator.cart` makes a communicator of a class that is derived from Communicator.
CYCLE_OF_CARTESIAN = {"hpccoll.communicator.communicator", "hpccoll.communicator.cartesian"}
MOST_LINES_OF_FILE = 420
MOST_LINES_OF_FUNCTION = 39


@dataclass(frozen=True)
class Import:
    """A module that a file imports: `hpccoll.plan.step`, `numpy`; `typed` if only a type checker reads the import."""

    module: str
    line: int
    typed: bool


def room_of(module: str) -> str:
    """Return the room of a module of hpccoll: the name below the top, or the front door."""
    return [*module.split("."), "__init__"][1]


def same_room(a: str, b: str) -> bool:
    """Return whether two rooms are one; errors and units share the ground floor."""
    return a == b or FLOORS[a] == FLOORS[b] == 0


def imports(tree: ast.Module, path: str) -> list[Import]:
    """Return every import in a file, also those inside functions, with relative ones resolved."""
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = taken_from(node, path)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        found += [Import(name, getattr(node, "lineno", 0), id(node) in typed) for name in names]
    return found


def taken_from(node: ast.ImportFrom, path: str) -> list[str]:
    """Return the modules of a `from` import; names re-exported by a package are resolved to their modules."""
    parents = Path(path).parts[:-1]
    base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
    module = ".".join(part for part in (base, node.module or "") if part)
    if module != "hpccoll":
        folder = ROOT / module.replace(".", "/")
        modules = {alias.name for alias in node.names if (folder / f"{alias.name}.py").is_file()}
        return [
            *(f"{module}.{name}" for name in sorted(modules)),
            *([module] if len(modules) < len(node.names) else []),
        ]
    homes = {True: "hpccoll.errors", False: "hpccoll.communicator"}
    return [
        f"hpccoll.{alias.name}" if alias.name in FLOORS else homes[alias.name in FRONT_DOOR] for alias in node.names
    ]


def sends(module: str) -> bool:
    """Whether a module of torch may communicate; torch.distributed.checkpoint is used in one process."""
    return module.startswith("torch.distributed") and not module.startswith("torch.distributed.checkpoint")


def broken_floors(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield the imports that look up, sideways, or out of a pure room."""
    room = room_of(path.removesuffix(".py").replace("/", "."))
    if room not in FLOORS:
        yield f"{path}: {room} has no floor; give it one here and in docs/architecture.md"
        return
    floor = FLOORS[room]
    for wanted in imports(tree, path):
        top, where = wanted.module.split(".")[0], f"{path}:{wanted.line}: imports {wanted.module}"
        if top == "hpccoll":
            other = room_of(wanted.module)
            if other not in FLOORS:
                yield f"{where}, which has no floor"
            elif FLOORS[other] >= floor and not same_room(other, room):
                yield f"{where} of floor {FLOORS[other]} from floor {floor}"
        elif room in PURE and (top in OUTSIDE_WORLD or top not in sys.stdlib_module_names | PURE_MAY_TAKE):
            yield f"{where}: {room} is pure Python and NumPy, without clock or I/O"
        elif room in COMPUTES and top == "torch" and not sends(wanted.module):
            continue
        elif top in DEVICES and room not in DRIVES_DEVICES and not wanted.typed:
            yield f"{where}: only runtime and peers may; others may name its types, under TYPE_CHECKING"


def broken_inner_floors(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield the imports within a package that look up or sideways."""
    package, name = [*Path(path).with_suffix("").parts[1:3], "__init__"][:2]
    floors = INNER_FLOORS.get(package)
    if floors is None:
        return
    if name not in floors:
        yield f"{path}: {package}.{name} has no floor; give it one in INNER_FLOORS"
        return
    floor, room = floors[name]
    for wanted in imports(tree, path):
        if wanted.module.split(".")[:2] != ["hpccoll", package]:
            continue
        other = [*wanted.module.split("."), "__init__"][2]
        other_floor, other_room = floors.get(other, (len(FLOORS), other))
        if other_floor >= floor and other_room != room:
            yield f"{path}:{wanted.line}: imports {wanted.module} of inner floor {other_floor} from {floor}"


def broken_sizes(path: str, source: str, tree: ast.Module) -> Iterator[str]:
    """Yield files and functions that are too long, and names without a meaning."""
    lines = len(source.splitlines())
    if lines > MOST_LINES_OF_FILE:
        yield f"{path}: {lines} lines, at most {MOST_LINES_OF_FILE}"
    if Path(path).stem in NAMES_THAT_SAY_NOTHING:
        yield f"{path}: the name says nothing about what is in it"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MOST_LINES_OF_FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {MOST_LINES_OF_FUNCTION}"


def missing_docstrings(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield public functions, classes and files without a docstring."""
    if ast.get_docstring(tree) is None:
        yield f"{path}: no docstring says what this file is for"
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield f"{path}:{node.lineno}: public {node.name} has no docstring"


def violations(path: str, source: str) -> list[str]:
    """Return every rule that a file of that path and source would break."""
    tree = ast.parse(source, path)
    return [
        *broken_floors(path, tree),
        *broken_inner_floors(path, tree),
        *broken_sizes(path, source, tree),
        *missing_docstrings(path, tree),
    ]


def module_of(path: str) -> str:
    """Return the module of a file: `hpccoll.plan` for hpccoll/plan/__init__.py."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def find_import_cycles(imported: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other, directly or by way of others (Tarjan's components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in sorted(imported[module]):
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == numbers[module]:
            members = {stack.pop()}
            while module not in members:
                members.add(stack.pop())
            if len(members) > 1:
                cycles.append(members)

    for module in imported:
        if module not in numbers:
            visit(module)
    return cycles


@pytest.mark.parametrize("path", FILES)
def test_file_keeps_the_rules(path):
    found = violations(path, (ROOT / path).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


def test_no_files_import_each_other():
    """Imports inside functions count, those for type checkers alone do not."""
    modules = {module_of(path): ast.parse((ROOT / path).read_text(encoding="utf-8"), path) for path in FILES}
    paths = dict(zip(modules, FILES, strict=True))
    imported = {
        module: {each.module for each in imports(tree, paths[module]) if not each.typed} & modules.keys() - {module}
        for module, tree in modules.items()
    }
    assert imported["hpccoll.algorithms.catalogue"] >= {"hpccoll.algorithms.ring", "hpccoll.algorithms.registry"}
    assert [cycle for cycle in find_import_cycles(imported) if cycle != CYCLE_OF_CARTESIAN] == []


def test_cycle_of_imports_is_found():
    assert find_import_cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]


def list_type_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all classes of a file, and of its type aliases, such as `Name: TypeAlias = ...`."""
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            yield from re.findall(r"^_?[A-Z][a-z]\w*$", ast.unparse(node.targets[0]))


def test_names_of_classes_and_type_aliases_are_unique():
    """Such a name denotes one type in all of hpccoll, private ones included."""
    paths: dict[str, list[str]] = {}
    for path in FILES:
        for name in list_type_names(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            paths.setdefault(name, []).append(path)
    assert {"Span", "Region", "Schema", "Floats"} <= paths.keys()
    assert {name: places for name, places in paths.items() if len(places) > 1} == {}


def test_every_room_has_a_floor_and_a_place_in_the_picture():
    picture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {Path(path).parts[1].removesuffix(".py") for path in FILES}
    assert rooms == set(FLOORS)
    for room in rooms - {"__init__"}:
        drawn = f"{room}/" if (ROOT / "hpccoll" / room).is_dir() else f"{room}.py"
        assert re.search(rf"^\s+.*{re.escape(drawn)}.*\s{FLOORS[room]}\s", picture, re.MULTILINE), drawn


PLANTED = [
    ("hpccoll/plan/step.py", "from hpccoll.algorithms.ring import all_reduce", "of floor 2 from floor 1"),
    ("hpccoll/plan/step.py", "import hpccoll.arrays.interface", "of floor 3 from floor 1"),
    ("hpccoll/plan/step.py", "from ..algorithms import ring", "of floor 2 from floor 1"),
    ("hpccoll/plan/step.py", "from .. import communicator", "of floor 6 from floor 1"),
    ("hpccoll/plan/step.py", "def _f():\n    import time", "without clock or I/O"),
    ("hpccoll/plan/step.py", "import scipy.stats", "pure Python and NumPy"),
    ("hpccoll/units.py", "from hpccoll.plan.step import Op", "of floor 1 from floor 0"),
    ("hpccoll/communicator/base.py", "from hpccoll.measure import record", "of floor 9 from floor 6"),
    ("hpccoll/algorithms/a.py", "from mpi4py import MPI", "pure Python and NumPy"),
    ("hpccoll/algorithms/a.py", "import click", "pure Python and NumPy"),
    ("hpccoll/runtime/job.py", "from hpccoll import Communicator", "of floor 6 from floor 4"),
    ("hpccoll/runtime/job.py", "import hpccoll", "of floor 13 from floor 4"),
    ("hpccoll/measure/a.py", "from mpi4py import MPI", "only runtime"),
    (
        "hpccoll/measure/a.py",
        "import importlib\ntorch = importlib.import_module('torch')",
        "only runtime",
    ),
    ("hpccoll/measure/a.py", "from hpccoll.cli import main", "of floor 12 from floor 9"),
    ("hpccoll/communicator/base.py", "import torch.distributed", "only runtime"),
    ("hpccoll/parallel/a.py", "import torch.distributed", "only runtime"),
    ("hpccoll/parallel/a.py", "from hpccoll.torch import register", "of floor 7 from floor 7"),
    ("hpccoll/train/a.py", "from mpi4py import MPI", "only runtime"),
    ("hpccoll/plan/proof/utils.py", "", "says nothing"),
    ("hpccoll/attic.py", "", "has no floor"),
    ("hpccoll/plan/attic.py", "", "plan.attic has no floor"),
    ("hpccoll/plan/step.py", "from hpccoll.plan.proof.checker import check", "of inner floor 1 from 0"),
    ("hpccoll/plan/proof/a.py", "from hpccoll.plan.simulation import simulate", "of inner floor 1 from 1"),
    ("hpccoll/plan/simulation/a.py", "from ..drawing import svg", "of inner floor 2 from 1"),
    ("hpccoll/plan/drawing/a.py", "from hpccoll.plan import Move", "of inner floor 3 from 2"),
    ("hpccoll/cli/a.py", "import hpccoll.attic", "has no floor"),
    ("hpccoll/plan/step.py", "_X = 1\n" * 420, "422 lines"),
    ("hpccoll/plan/step.py", "def _f():\n" + "    _ = 1\n" * 39, "_f has 40 lines"),
    ("hpccoll/plan/step.py", "class _C:\n    def f(self):\n" + "        _ = 1\n" * 39, "f has 40 lines"),
    ("hpccoll/plan/step.py", "def f():\n    pass", "public f has no docstring"),
    ("hpccoll/plan/step.py", "class C:\n    pass", "public C has no docstring"),
]


@pytest.mark.parametrize(("path", "source", "message"), PLANTED)
def test_planted_violation_is_caught(path, source, message):
    planted = f'"""A file."""\n{source}\n'
    found = violations(path, planted)
    assert len(found) == 1
    assert message in found[0]


def test_lawful_imports_pass():
    source = """\"\"\"A file.\"\"\"
from typing import TYPE_CHECKING
import numpy as np
from hpccoll import __version__
from hpccoll.plan.plan import Plan
from .ring import all_reduce
"""
    assert violations("hpccoll/algorithms/a.py", source) == []
    assert violations("hpccoll/cli/a.py", source.replace("numpy as np", "click, hpccoll.measure")) == []
    assert (
        violations(
            "hpccoll/runtime/job.py", source.replace("numpy as np", "torch, cupy, mpi4py").replace(".ring", ".backoff")
        )
        == []
    )
    computing = source.replace("numpy as np", "torch").replace(".ring", "hpccoll.communicator")
    assert violations("hpccoll/train/a.py", computing) == []
    typed = source + "if TYPE_CHECKING:\n    from mpi4py import MPI\n"
    assert violations("hpccoll/measure/a.py", typed) == []


@pytest.mark.parametrize("module", ["hpccoll.plan.proof.checker", "hpccoll.plan.serial_replay", "hpccoll.algorithms"])
def test_plans_load_without_mpi_or_devices(module):
    code = f"import sys, {module}; print(*sorted({DEVICES!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == []


def test_a_communicator_loads_no_more_than_it_needs():
    code = "import sys, hpccoll; hpccoll.Communicator(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(run.stdout.split())
    assert "hpccoll.runtime.engine" in loaded
    assert loaded & NOT_FOR_A_COMMUNICATOR == set()


def test_every_name_that_a_package_exports_can_be_imported():
    """Some names are imported at their first use: `check` of `hpccoll.plan`, for example."""
    for package in (hpccoll, hpccoll.plan, hpccoll.algorithms):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = package.nothing


def test_tests_skip_only_by_marks_and_where_a_requirement_is_missing():
    """Tests call `skip_or_fail`, which fails with CI=1; the mark `needs_ranks` selects tests by the number of ranks."""
    skips = [
        f"{path}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != ROOT / "tests" / "requirements.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.skip"
    ]
    assert skips == []
