"""In a checkout: the rooms by the names that they have where Callboard is installed. No part of the wheel.

`callboard.bus` is `bus` itself, and so are all modules below it: one module with two names, never a second copy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

ROOMS = ("bus", "adapters", "tracestore", "engine")
_PREFIX = "callboard."


class _SameModule:
    """A loader that gives the module of a room instead of loading one.

    Neither this nor the finder names its abstract class: `importlib.abc` takes longer than all of this package.
    """

    def __init__(self, own: ModuleSpec) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self._own.name)

    def exec_module(self, module: ModuleType) -> None:
        """It ran when it was imported under its own name, and goes on by that."""
        module.__spec__ = self._own

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        get_code = getattr(self._own.loader, "get_code", None)
        return get_code(self._own.name) if get_code is not None else None


class _Rooms:
    """Finds `callboard.ROOM` and what is below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = fullname.removeprefix(_PREFIX)
        if own == fullname or own.partition(".")[0] not in ROOMS:
            return None
        spec = find_spec(own)
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, _SameModule(spec), origin=spec.origin, is_package=is_package)


def open_rooms() -> None:
    """Let the rooms be imported by both names."""
    sys.meta_path.insert(0, _Rooms())
