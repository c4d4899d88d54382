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
    package: str, homes: Mapping[str, Sequence[str]], others: Callable[[str], object] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: The package's name.
        homes: The names that each module defines. A module is named relative to the package.
        others: Finds any other name. It raises KeyError for a name that it does not know, and is asked only for
            names that a class can have.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        module = sys.modules[package]
        try:
            value = found(name)
        except KeyError:
            missing = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(missing, name=name, obj=module) from None
        setattr(module, name, value)  # from now on it is found without us
        return value

    def found(name: str) -> object:
        if others is not None and name not in home_of and name[:1].isupper():
            return others(name)
        return getattr(import_module(home_of[name], package), name)

    def names() -> list[str]:
        module = vars(sys.modules[package])
        return sorted({*module, *module.get("__all__", ()), *home_of})

    return get, names
