"""The pages about the code name files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE))
    assert set(re.findall(r"`([A-Z][a-z]+[A-Z]\w*)[.`]", text)) <= classes


def test_files_of_the_picture_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = (ROOT / "hpccoll", ROOT / "hpccoll" / "plan", ROOT / "hpccoll" / "runtime")
    for name in re.findall(r"\b[a-z_]+\.py\b", text.split("hpccoll/  ")[1].split("```")[0]):
        assert any((package / name).is_file() for package in packages), name
