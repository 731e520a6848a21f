"""Write the pictures of docs/pictures.md to docs/pictures/: python docs/make_drawings.py. Output is reproducible."""

from __future__ import annotations

import sys
from pathlib import Path

from hpccoll.cli.main import main

PICTURES = Path(__file__).parent / "pictures"
DRAWINGS = {
    "ring_5.svg": ("all_reduce/ring", "--ranks", "5"),
    "ring_5.gif": ("all_reduce/ring", "--ranks", "5"),
    "tree_8.svg": ("all_reduce/tree", "--ranks", "8"),
    "double_tree_8.svg": ("all_reduce/double_tree", "--ranks", "8", "--chunks", "2"),
    "double_tree_8.gif": ("all_reduce/double_tree", "--ranks", "8", "--chunks", "2"),
    "recursive_doubling_8.svg": ("all_reduce/recursive_doubling", "--ranks", "8"),
    "rabenseifner_8.svg": ("all_reduce/rabenseifner", "--ranks", "8"),
    "hierarchical_6.svg": ("all_reduce/hierarchical", "--ranks", "6", "--nodes", "2"),
    "all_to_all_bruck_5.svg": ("all_to_all/bruck", "--ranks", "5"),
    "dissemination_5.svg": ("barrier/dissemination", "--ranks", "5"),
}

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    sys.exit(max(main(["draw", *arguments, "-o", str(PICTURES / file)]) for file, arguments in DRAWINGS.items()))
