"""The commands that install the packages on which optional features depend."""

from __future__ import annotations


def format_install_command(extra: str) -> str:
    """Return the `pip install` command for an extra of hpccoll, such as `torch`: `pip install "torch>=2.11,<2.16"`.

    The `pip install` command names packages instead of the extra, so that it also works if hpccoll is installed from
    its source tree.
    """
    from importlib import metadata

    try:
        required = metadata.requires("hpccoll") or []
    except metadata.PackageNotFoundError:
        required = []
    wanted = [
        name.strip()
        for name, _, marker in (package.partition(";") for package in required)
        if _selects_extra(marker, extra)
    ]
    return "pip install " + (
        " ".join(f'"{package}"' for package in wanted) or f'".[{extra}]" in the source tree of hpccoll'
    )


def _selects_extra(marker: str, extra: str) -> bool:
    """Whether the environment marker of a package's requirement, such as `extra == "torch"`, selects the extra."""
    return marker.replace("'", '"').strip() == f'extra == "{extra}"'
