"""Lazy imports for the public names of a package.

Only the modules that a program uses are imported. A package's ``__init__.py`` lists each name once, under the
module that defines it:

    __getattr__, __dir__, __all__ = face(__name__, {".actor": "Actor ActorContext"})

Type checkers and editors read the stub file, which ``scripts/make_stubs.py`` writes from the same table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def face(
    package: str, homes: Mapping[str, str], others: Callable[[str], object] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` (PEP 562) and `__all__`.

    Args:
        package: The package's name.
        homes: The names that each module defines, separated by spaces. Modules of the package have relative names,
            such as ``.actor``.
        others: A function that finds a name that the table lacks, such as an adapter in an added folder. It raises
            KeyError if the name does not exist.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        module = sys.modules[package]
        try:
            value = found(name)
        except KeyError:
            missing = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(missing, name=name, obj=module) from None
        setattr(module, name, value)  # later uses read the module attribute and skip this function
        return value

    def found(name: str) -> object:
        if others is not None and name not in home_of and name[:1].isupper():
            return others(name)
        return getattr(import_module(home_of[name], package), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, sorted(home_of)
