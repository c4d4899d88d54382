"""Names of a package that are imported when somebody asks for them, so that a host pays only for the parts it
uses.

In the package's ``__init__.py``, where type checkers read the imports and the interpreter the table:

    if TYPE_CHECKING:
        from .media.images import ImageResult
    else:
        __getattr__, __dir__ = later(__name__, {".media.images": ("ImageResult",)})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def later(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: The package's name.
        homes: The names that each module defines. A module is named relative to the package.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        module = sys.modules[package]
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        value = getattr(import_module(home_of[name], package), name)
        setattr(module, name, value)  # from now on it is found without us
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
