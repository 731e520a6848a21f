"""The pages name files, functions, variables and exit statuses that exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

from hpccoll import __version__, errors
from hpccoll.cli.main import hpccoll
from hpccoll.doctor import environment
from hpccoll.errors import HpccollError

ROOT = Path(__file__).parents[2]
PAGES = ("architecture", "call-path", "runtime", "glossary")
NAMED_IN_FILE = re.compile(r"`([\w.]+)` (?:and `([\w.]+)` |or `([\w.]+)` )?\(`([\w/]+\.py)`\)")


def find_file(name: str) -> Path | None:
    """Return the file that a page means: paths are relative to the repository or to hpccoll/runtime."""
    return next((path for path in (ROOT / name, ROOT / "hpccoll" / "runtime" / name) if path.is_file()), None)


@pytest.mark.parametrize("page", PAGES)
def test_files_and_links_exist(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    missing = [name for name in re.findall(r"`([\w/]+\.py)`", text) if find_file(name) is None]
    missing += [link for link in re.findall(r"\]\((?!http)(.*?)\)", text) if not (ROOT / "docs" / link).exists()]
    assert not missing


def find_broken_tables(text: str) -> list[int]:
    """Return the numbers of lines that continue a table of Markdown after an empty line, or begin one without heads."""
    lines = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL).splitlines()
    lines.append("")
    firsts = [n for n, line in enumerate(lines) if line.startswith("|") and not (n and lines[n - 1].startswith("|"))]
    return [n + 1 for n in firsts if not re.fullmatch(r"\|(?: *:?-+:? *\|)+", lines[n + 1].strip())]


def test_broken_tables_are_found():
    table = "| a |\n|---|\n| 1 |\n"
    assert find_broken_tables(table + "\n| 2 |\n") == [5]
    assert not find_broken_tables(table + "\ntext\n\n" + table)


def test_no_table_is_cut_in_two():
    pages = [*ROOT.glob("*.md"), *(ROOT / "slurm").glob("*.md"), *(ROOT / "bench").rglob("*.md")]
    pages += (ROOT / "docs").rglob("*.md")
    broken = {page.name: found for page in pages if (found := find_broken_tables(page.read_text(encoding="utf-8")))}
    assert not broken


@pytest.mark.parametrize("page", ["call-path", "runtime"])
def test_names_are_in_their_files(page):
    text = re.sub(r"\s+", " ", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    found = [(name, path) for *names, path in NAMED_IN_FILE.findall(text) for name in names if name]
    assert found
    for name, path in found:
        source = (find_file(path) or ROOT / path).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"\b{part}\b", source), f"{name} is not in {path}"


@pytest.mark.parametrize("page", PAGES)
def test_classes_exist(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "hpccoll").rglob("*.py"))
    source += (ROOT / "hpccoll" / "native" / "_extension.pyi").read_text(encoding="utf-8")
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE))
    assert set(re.findall(r"`([A-Z][a-z]+[A-Z]\w*)[.`]", text)) <= classes


def test_files_of_the_picture_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = ["", "communicator", "failures", "library_rules", "lowering", "mpi4py", "peers", "plan", "processes"]
    names += ["recordings", "runtime", "synthesis"]
    packages = [ROOT / "hpccoll" / name for name in names]
    for name in re.findall(r"\b[a-z_]+\.py\b", text.split("hpccoll/  ")[1].split("```")[0]):
        assert any((package / name).is_file() for package in packages), name


def find_variables(*folders: str) -> set[str]:
    """Return the names of the environment variables of hpccoll in the Python files and shell scripts of folders."""
    files = [path for folder in folders for kind in ("*.py", "*.sh") for path in (ROOT / folder).rglob(kind)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return set(re.findall(r"(?<![A-Z_])HPCCOLL(?:_[A-Z][A-Z0-9]*)+(?![A-Z0-9_])", text))


def read_reference(page: str) -> str:
    return (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")


def test_every_variable_is_in_the_reference():
    documented = set(re.findall(r"^\| `(HPCCOLL_[A-Z0-9_]+)` \|", read_reference("environment"), re.MULTILINE))
    no_variables = {"HPCCOLL_DEBG", "HPCCOLL_TEST_SECRET"}  # test data
    assert documented == find_variables("hpccoll", "slurm", "tests", "bench") - no_variables


def test_doctor_knows_every_variable_of_the_library_and_the_job_scripts():
    tests_only = {"HPCCOLL_OTHER_MPIRUN", "HPCCOLL_WRITE_GOLDEN"}
    assert set(environment.KNOWN_VARIABLES) == find_variables("hpccoll", "slurm") - tests_only


def test_every_exit_status_is_in_the_reference():
    rows = dict(re.findall(r"^\| (\d+) \| .*? \| (.*?) ?\|$", read_reference("environment"), re.MULTILINE))
    assert list(map(int, rows)) == [0, 1, 2, 3, 4, 130, 141, 143]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HpccollError)]
    for kind in kinds:
        assert f"`{kind.__name__}`" in rows[str(kind.exit_status)]
    assert sum(row.count("`") // 2 for row in rows.values()) == len(kinds)


def list_literal_parts() -> set[str]:
    """Return the literal parts of all strings and f-strings of the package, and of the job scripts."""
    parts: set[str] = set()
    for path in (ROOT / "hpccoll").rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        parts |= {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for path in (ROOT / "slurm").glob("*.sh"):
        parts |= set(re.split(r"\$\{?\w+\}?|\"", path.read_text(encoding="utf-8")))
    return parts


def measure_coverage(message: str, parts: set[str]) -> float:
    """Return the fraction of a message that literal parts of six characters or more cover; its end may be cut."""
    covered = [False] * len(message)
    for part in parts:
        start = message.find(part) if len(part) >= 6 else -1
        while start >= 0:
            covered[start : start + len(part)] = [True] * len(part)
            start = message.find(part, start + 1)
        start = message.rfind(part[:12])
        if start >= 0 and part.startswith(message[start:]):
            covered[start:] = [True] * (len(message) - start)
    return sum(covered) / len(message)


def test_every_message_of_troubleshooting_is_in_the_code():
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = [" ".join(block.split()) for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL)]
    assert len(messages) >= 25
    parts = list_literal_parts()
    for message in messages:
        assert measure_coverage(message, parts) >= 0.6, message


def test_the_citation_has_the_version_of_the_package():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def list_figures(text: str) -> set[str]:
    return {figure.rstrip(".,") for figure in re.findall(r"(?<![\w.])\d[\d,.]*(?!\w)", text)}


@pytest.mark.parametrize("page", ["24576-ranks", "which-algorithm"])
def test_every_figure_in_the_prose_is_in_a_table(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`|\]\(.*?\)", "", text, flags=re.DOTALL)
    tables = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    assert list_figures(prose)
    assert list_figures(prose) <= list_figures(tables.replace("x |", " |"))


def list_commands_of_pages() -> list[tuple[str, list[str]]]:
    """Return the page and the words of each command line of hpccoll in the pages' `sh` and `console` blocks."""
    pages = [ROOT / "README.md", ROOT / "slurm" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = []
    for page in pages:
        for kind, block in re.findall(r"```(sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            prompt = "$ " if kind == "console" else ""  # the other lines of a console are output
            for line in (line for line in block.splitlines() if line.startswith(prompt)):
                words = shlex.split(line.removeprefix(prompt).partition(" #")[0])
                if "hpccoll" in words:
                    found.append((page.name, words[words.index("hpccoll") + 1 :]))
    return found


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the click command that words call, and the rest of the words, up to another program's command line."""
    command: click.Command = hpccoll
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words[: words.index("--")] if "--" in words else words


def test_every_command_of_the_pages_has_the_options_shown():
    commands = list_commands_of_pages()
    assert len(commands) > 80
    for page, line in commands:
        command, words = find_command(line)
        known = {name for parameter in command.get_params(click.Context(command)) for name in parameter.opts}
        known |= {name for parameter in command.params for name in parameter.secondary_opts} | {"-h", "--help"}
        unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
        assert not unknown, (page, line)
