"""What happened, and what it cost.

The store of events and calls, the writer that fills it from the bus, price tables, and repricing. Nothing here
calls a provider.
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

from .captured import Capture, Redact
from .content import SavedSession
from .database import Durability
from .prices import Component, Explanation, PriceRow, PriceTable
from .queries import CallFilter, CallRow, CostRow, SessionRow
from .repricing import ModelReprice, RepriceReport, RepriceRun
from .store import TraceStore
from .writer import Flush, TraceWriter, WriterCore, WriterOptions, WriterStatistics

__all__ = [
    "CallFilter",
    "CallRow",
    "Capture",
    "Component",
    "CostRow",
    "Durability",
    "Explanation",
    "Flush",
    "ModelReprice",
    "PriceRow",
    "PriceTable",
    "Redact",
    "RepriceReport",
    "RepriceRun",
    "SavedSession",
    "SessionRow",
    "TraceStore",
    "TraceWriter",
    "WriterCore",
    "WriterOptions",
    "WriterStatistics",
]
