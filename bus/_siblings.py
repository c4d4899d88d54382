"""Are the four packages the ones that were installed together?

They have short names, and a host's own `engine` or `bus` that is found first would replace one of them. Said here
in one clear error, instead of later in many strange ones.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("bus", "adapters", "tracestore", "engine")


def check_siblings(init_file: str) -> None:
    """Raise ImportError if one of the four would come from elsewhere than the one with this __init__.py."""
    home = Path(init_file).parent.parent
    for name in PACKAGES:
        found = _origin(name)
        if found is not None and found.parent.parent != home:
            raise ImportError(
                f"callboard's package {name!r} is hidden by another: {init_file} belongs with "
                f"{home / name / '__init__.py'}, but Python finds {found}. Rename the other package, or put "
                f"callboard's folder before it on sys.path"
            )


def _origin(name: str) -> Path | None:
    module = sys.modules.get(name)
    spec: ModuleSpec | None
    try:
        spec = find_spec(name) if module is None else module.__spec__
    except ValueError:  # a module made by hand, without a spec
        spec = None
    if spec is None or spec.origin is None or not spec.has_location:
        return None  # not installed, or a mere folder
    return Path(spec.origin)
