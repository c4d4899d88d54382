"""Writes the stub beside each package face: the same names as imports, for type checkers and editors.

A face lists its public names in a table (see `callboard.bus._lazy_names`). Run this after you change one:

    python scripts/make_stubs.py
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("bus", "adapters", "tracestore", "engine")


def faces() -> list[Path]:
    """The `__init__.py` of each package with a table of names."""
    files = (path for room in ROOMS for path in sorted((ROOT / room).rglob("__init__.py")))
    return [path for path in files if "= face(" in path.read_text(encoding="utf-8")]


def table(path: Path) -> dict[str, list[str]]:
    """The names of a face, by the module that defines them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (call,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "face"
    )
    homes: dict[str, str] = ast.literal_eval(call.args[1])
    return {home: names.split() for home, names in homes.items()}


def stub(path: Path) -> str:
    """The text of a face's stub."""
    homes = table(path)
    imports = [f"from {home} import {', '.join(names)}" for home, names in homes.items()]
    names = ",\n    ".join(f'"{name}"' for name in sorted(name for names in homes.values() for name in names))
    return "\n".join(["# Written by scripts/make_stubs.py.", *imports, "", f"__all__ = [\n    {names},\n]", ""])


def whole() -> str:
    """The text of the stub of `callboard`, with the names of all rooms."""
    rooms: dict[str, list[str]] = {}
    earlier: set[str] = set()
    for folder in (*ROOMS, "engine/middleware", "engine/gateway"):
        names = [name for names in table(ROOT / folder / "__init__.py").values() for name in names]
        rooms["callboard." + folder.replace("/", ".")] = sorted(set(names) - earlier)
        earlier.update(names)
    imports = [f"from {room} import {', '.join(names)}" for room, names in rooms.items()]
    names = ",\n    ".join(f'"{name}"' for name in sorted(earlier))
    return "\n".join(["# Written by scripts/make_stubs.py.", *imports, "", f"__all__ = [\n    {names},\n]", ""])


if __name__ == "__main__":
    (ROOT / "callboard/__init__.pyi").write_text(whole(), encoding="utf-8")
    for face in faces():
        face.with_suffix(".pyi").write_text(stub(face), encoding="utf-8")
