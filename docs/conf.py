"""Settings of Sphinx for the documentation site, which `make docs` builds from the Markdown files of the repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from hpccoll import __version__  # noqa: E402 - found on the path of the line above

project, author, copyright = "hpccoll", "the hpccoll authors", "the hpccoll authors"  # noqa: A001 - Sphinx's names
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "record_tables"]

# The source folder is the repository, so that links between docs/, bench/ and slurm/ work in the site and on GitHub.
root_doc = "docs/index"
include_patterns = [
    *("docs/**.md", "bench/README.md", "bench/tables/*.md", "slurm/README.md", "hpccoll/train/digits.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md"),
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Pages of data are reached from the pages about them, not from the sidebar.
suppress_warnings = ["toc.not_included"]

smartquotes = False  # would turn the -- of an option into a dash
default_role = "code"  # docstrings write code between single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 160

html_theme = "furo"
html_title = f"hpccoll {release}"
html_show_sphinx = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]


def escape_stars(*event: Any) -> None:
    """Escape the stars of a docstring or help text outside code, because the texts of the project use no emphasis."""
    lines: list[str] = event[-1]
    lines[:] = [re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", line) for line in lines]


def show_examples_as_code(*event: Any) -> None:
    """Turn the example of a command's help, which sphinx-click gives as a line block, into a code block."""
    lines: list[str] = event[-1]
    begin = next((number for number, line in enumerate(lines) if line.startswith("| Example")), None)
    if begin is not None:
        end = next((number for number in range(begin, len(lines)) if not lines[number].startswith("|")), len(lines))
        commands = [f"   {line.removeprefix('|').strip()}" for line in lines[begin + 1 : end]]
        lines[begin:end] = ["Example::", "", *commands, ""]


def setup(app: Sphinx) -> None:
    """Connect the handlers of Sphinx's events."""
    app.connect("autodoc-process-docstring", escape_stars, priority=400)  # before napoleon, which adds emphasis
    app.connect("sphinx-click-process-description", show_examples_as_code, priority=600)
    app.connect("sphinx-click-process-description", escape_stars)
    app.connect("sphinx-click-process-epilog", escape_stars)
