"""`Mutant`: one changed line of hpccoll, and the test that finds it; and how mutants are drawn."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

PYTHON_SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
    ast.And: "or",
    ast.Or: "and",
}
C_SWAPS = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " == ": " != ",
    " != ": " == ",
    " + ": " - ",
    " - ": " + ",
    " && ": " || ",
    " || ": " && ",
    " += ": " = ",
    "++": "--",
}


class Mutant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a file of hpccoll and its wrong version."""

    file: str  # path from the repository's root
    old: str  # the line, without the line break
    new: str  # its wrong version
    occurrence: int = 0  # index among the equal lines of the file
    test: str = ""  # a test of `make test` that fails with the wrong line: its path and name

    def apply(self, root: Path) -> None:
        """Plant the mutant into the tree at `root`.

        Raises:
            LookupError: the file has no such line.
        """
        path = root / self.file
        lines = path.read_text().split("\n")
        lines[self._find(lines)] = self.new
        path.write_text("\n".join(lines))

    def is_applicable(self, root: Path) -> bool:
        """Whether the file at `root` still has the line."""
        try:
            self._find((root / self.file).read_text().split("\n"))
        except (LookupError, OSError):
            return False
        return True

    def _find(self, lines: list[str]) -> int:
        places = [number for number, line in enumerate(lines) if line == self.old]
        if self.occurrence >= len(places):
            raise LookupError(f"{self.file} has no line {self.old.strip()!r} number {self.occurrence}")
        return places[self.occurrence]


def read_mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a file of JSON Lines."""
    return [msgspec.json.decode(line, type=Mutant) for line in path.read_bytes().splitlines()]


def draw_mutants(root: Path, count: int, seed: int, pattern: str) -> list[Mutant]:
    """Return `count` different mutants of the files that match `pattern`, a glob such as hpccoll/**/*.py.

    A file is drawn with a probability proportional to its number of possible mutants.
    """
    candidates = [mutant for path in sorted(root.glob(pattern)) for mutant in _list_mutants(root, path)]
    return random.Random(seed).sample(candidates, min(count, len(candidates)))


def _list_mutants(root: Path, path: Path) -> Iterator[Mutant]:
    lines = path.read_text().split("\n")
    changes = _change_python(path.read_text()) if path.suffix == ".py" else _change_c(lines)
    for number, new in changes:
        yield Mutant(str(path.relative_to(root)), lines[number], new, lines[:number].count(lines[number]))


def _change_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of a line and its wrong version: another operator, another constant, or a condition negated."""
    lines = text.split("\n")
    for function in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
        for statement in function.body:
            for node in ast.walk(statement):
                for row, start, end, word in _list_changes(node, lines):
                    yield row, lines[row][:start] + word + lines[row][end:]


def _list_changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str]]:
    """Yield changes of a node of one line: row, first and last column, and the new words."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _replace_between(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.BoolOp):
        yield from _replace_between(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
        yield from _replace_between(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.lineno == node.end_lineno:
        assert node.end_col_offset is not None
        yield node.lineno - 1, node.col_offset, node.end_col_offset, str(node.value + 1)
    elif isinstance(node, ast.If) and node.test.lineno == node.test.end_lineno:
        assert node.test.end_col_offset is not None
        row, start, end = node.test.lineno - 1, node.test.col_offset, node.test.end_col_offset
        yield row, start, end, f"not ({lines[row][start:end]})"


def _replace_between(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[str]
) -> Iterator[tuple[int, int, int, str]]:
    """Yield the change of the operator between two expressions, if both and the operator are on one line of ASCII."""
    word = PYTHON_SWAPS.get(type(operator))
    row = right.lineno - 1
    if word is None or left.end_lineno != right.lineno or not lines[row].isascii():
        return
    assert left.end_col_offset is not None
    between = lines[row][left.end_col_offset : right.col_offset]
    if between.strip("() "):
        before = between[: len(between) - len(between.lstrip(" )"))] or " "
        after = between[len(between.rstrip(" (")) :] or " "
        yield row, left.end_col_offset, right.col_offset, before + word + after


def _change_c(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if code.lstrip().startswith(("#", "*", "/*")) or not code.startswith("    "):
            continue
        for old, new in C_SWAPS.items():
            for place in re.finditer(re.escape(old), code):
                yield number, line[: place.start()] + new + line[place.end() :]
