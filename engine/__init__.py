"""What to do next: configuration and routing, sessions and turns, tools, the command line.

Composes the other three packages; speaks no wire format and no SQL.
"""

from __future__ import annotations

try:
    from bus._siblings import check_siblings
except ModuleNotFoundError as error:  # somebody else's `bus` was found first
    from importlib.util import find_spec

    raise ImportError(
        f"callboard's package 'bus' is hidden by another: {__file__} belongs with the bus/ beside its own folder, "
        f"but Python finds {getattr(find_spec('bus'), 'origin', None)}. Rename the other package, or put "
        "callboard's folder before it on sys.path"
    ) from error

check_siblings(__file__)

from .availability import Availability  # noqa: E402 (after the check, which explains what imports could not)
from .choice import ModelChoice, Requirements  # noqa: E402
from .config import load_registry  # noqa: E402
from .engine import Engine, Limits, Timeouts  # noqa: E402
from .health import Check, HealthReport  # noqa: E402
from .registry import (  # noqa: E402
    AdapterEntry,
    ModelDefaults,
    ModelEntry,
    ModelRegistry,
)
from .session import Session, TurnOptions, TurnStream  # noqa: E402
from .statistics import EngineStatistics  # noqa: E402
from .tools import Tool  # noqa: E402

__all__ = [
    "AdapterEntry",
    "Availability",
    "Check",
    "Engine",
    "EngineStatistics",
    "HealthReport",
    "Limits",
    "ModelChoice",
    "ModelDefaults",
    "ModelEntry",
    "ModelRegistry",
    "Requirements",
    "Session",
    "Timeouts",
    "Tool",
    "TurnOptions",
    "TurnStream",
    "load_registry",
]
