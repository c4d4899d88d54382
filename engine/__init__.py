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

from .availability import Availability
from .choice import ModelChoice, Requirements
from .compensation import ToolSettings
from .config import load_registry
from .embedding import EmbeddingOptions, EmbeddingResult
from .engine import Engine, Limits, Timeouts
from .health import Check, HealthReport
from .registry import (
    AdapterEntry,
    ModelDefaults,
    ModelEntry,
    ModelRegistry,
)
from .results import GenerateResult, StepResult
from .session import Session, TurnStream
from .sessions import SessionInfo
from .statistics import EngineStatistics
from .tools import Tool
from .turn_options import TurnOptions

__all__ = [
    "AdapterEntry",
    "Availability",
    "Check",
    "EmbeddingOptions",
    "EmbeddingResult",
    "Engine",
    "EngineStatistics",
    "GenerateResult",
    "HealthReport",
    "Limits",
    "ModelChoice",
    "ModelDefaults",
    "ModelEntry",
    "ModelRegistry",
    "Requirements",
    "Session",
    "SessionInfo",
    "StepResult",
    "Timeouts",
    "Tool",
    "ToolSettings",
    "TurnOptions",
    "TurnStream",
    "load_registry",
]
