"""Hatchling's hook: a wheel holds `one_package`, an editable installation the checkout as it is."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class OnePackage(BuildHookInterface[Any]):
    """Puts the rooms below `callboard/`."""

    PLUGIN_NAME = "custom"
    _folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        spec = importlib.util.spec_from_file_location("one_package", Path(self.root, "scripts", "one_package.py"))
        assert spec is not None
        assert spec.loader is not None
        one_package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(one_package)
        self._folder = Path(tempfile.mkdtemp(prefix="callboard-wheel-"))
        one_package.build(Path(self.root), self._folder / one_package.PACKAGE)
        build_data["force_include"][str(self._folder / one_package.PACKAGE)] = one_package.PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)
