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

default_role = "code"  # docstrings write code between single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"hpccoll {release}"
html_show_sphinx = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]


def escape_stars(*event: Any) -> None:
    """Escape the stars of a docstring or help text outside code, because the texts of the project use no emphasis."""
    lines: list[str] = event[-1]
    lines[:] = [re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Connect the handlers of Sphinx's events."""
    app.connect("autodoc-process-docstring", escape_stars, priority=400)  # before napoleon, which adds emphasis
    app.connect("sphinx-click-process-description", escape_stars)
    app.connect("sphinx-click-process-epilog", escape_stars)
