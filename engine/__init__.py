"""What to do next: configuration and routing, sessions and turns, tools, the command line.

Composes the other three packages; speaks no wire format and no SQL.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def _require_siblings(*names: str) -> None:
    """Raise if one of our packages is shadowed by somebody else's of the same name."""
    home = Path(__file__).parent.parent
    for name in names:
        spec = find_spec(name)
        found = spec.origin if spec is not None else None
        expected = home / name / "__init__.py"
        if found is None or Path(found) != expected:
            raise ImportError(
                f"callboard's package {name!r} should be {expected}, but Python finds {found}. Rename or move "
                f"the other {name!r}, or put {home} before it on sys.path."
            )


_require_siblings("bus", "adapters", "tracestore")

from .config import load_registry  # noqa: E402 (after the check, which explains what imports could not)
from .engine import Engine, Limits, Timeouts  # noqa: E402
from .registry import AdapterEntry, ModelEntry, ModelRegistry  # noqa: E402
from .session import Session, TurnOptions, TurnStream  # noqa: E402
from .tools import Tool  # noqa: E402

__all__ = [
    "AdapterEntry",
    "Engine",
    "Limits",
    "ModelEntry",
    "ModelRegistry",
    "Session",
    "Timeouts",
    "Tool",
    "TurnOptions",
    "TurnStream",
    "load_registry",
]
