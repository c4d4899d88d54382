"""Imports of the rooms become imports from the one package, which has all their public names."""

from __future__ import annotations

import sys

import pytest

import callboard
import engine
from scripts.one_package import ROOMS, CannotRewrite, named_in_strings, rewritten


def test_the_package_has_every_public_name_of_the_rooms() -> None:
    """And a name means the same object, however it is imported."""
    for room in ROOMS:
        module = sys.modules[room]
        assert set(module.__all__) <= set(callboard.__all__)
        assert sys.modules[f"callboard.{room}"] is module
    assert callboard.Engine is engine.Engine
    with pytest.raises(AttributeError, match="no attribute 'Engin'") as caught:
        callboard.Engin  # noqa: B018
    assert caught.value.obj is callboard  # by which Python says what may have been meant


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from bus.values import usage\n", "from callboard.bus.values import usage\n"),
        ("def f():\n    from engine import Engine, x\n", "def f():\n    from callboard.engine import Engine, x\n"),
        ("import adapters.contract as c, os\n", "import callboard.adapters.contract as c, os\n"),
        ("x = '\u2028'\nfrom bus import y\n", "x = '\u2028'\nfrom callboard.bus import y\n"),
        ("import bus as a, engine as b\n", "import callboard.bus as a, callboard.engine as b\n"),
        ("import bus, engine\n", "import callboard.bus as bus, callboard.engine as engine\n"),
        ("from .bus import x\nfrom busy import y\nimport engineering\n", None),
        ("'ä'; from tracestore import (\n    a,\n)\n", "'ä'; from callboard.tracestore import (\n    a,\n)\n"),
    ],
)
def test_imports_of_rooms_become_imports_from_the_package(source: str, expected: str | None) -> None:
    """Absolute ones, wherever they stand; all others stay."""
    assert rewritten(source, "x.py") == (source if expected is None else expected)


def test_what_would_mean_something_else_is_refused() -> None:
    """`import bus.values` binds `bus`, which is no name of the package's; and nobody rewrites strings."""
    with pytest.raises(CannotRewrite, match=r"x\.py:1: import bus\.values needs an `as`"):
        rewritten("import bus.values\n", "x.py")
    with pytest.raises(CannotRewrite, match=r"x\.py:1: expected `from bus` in one piece"):
        rewritten("from  bus import x\n", "x.py")
    modules = frozenset({"adapters.contract"})
    assert named_in_strings("x = 'adapters.contract:Adapter'\ny = '.contract:Adapter'\n", modules) == [
        (1, "adapters.contract:Adapter")
    ]
    assert named_in_strings("log = Log('adapters.contract')\n", modules) == []
