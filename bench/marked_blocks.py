"""Replaces generated blocks of Markdown pages, which stand between two marks in HTML comments."""

from __future__ import annotations

from pathlib import Path


def replace_block(text: str, name: str, content: str) -> str:
    """Return the page `text` with `content` in the block `name`; raise ValueError if the page has no such block.

    The first mark is `<!-- NAME: written by SCRIPT -->`, the second `<!-- end of NAME -->`.
    """
    before, begin, rest = text.partition(f"<!-- {name}: written by ")
    script, arrow, old = rest.partition(" -->\n")
    _, end, after = old.partition(f"<!-- end of {name} -->")
    if not (begin and arrow and end):
        raise ValueError(f"the page has no block {name}")
    return f"{before}{begin}{script}{arrow}\n{content.strip()}\n\n{end}{after}"


def write_blocks(path: Path, blocks: dict[str, str]) -> None:
    """Replace blocks, given by their names, in a page."""
    text = path.read_text(encoding="utf-8")
    for name, content in blocks.items():
        text = replace_block(text, name, content)
    path.write_text(text, encoding="utf-8")
