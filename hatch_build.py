"""Compiles the native extension when hpccoll is built or installed; see hpccoll/native/compiler.py."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeExtensionHook(BuildHookInterface[Any]):
    """Compiles the extension into the source tree, and adds it to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the interface has it
        """Compile the extension; the wheel is then one for this Python and platform."""
        path = Path(self.root, "hpccoll", "native", "compiler.py")
        spec = spec_from_file_location("compiler", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(path)
        compiler = module_from_spec(spec)
        spec.loader.exec_module(compiler)
        extension = compiler.compile_extension()
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["artifacts"].append(extension.relative_to(self.root).as_posix())
