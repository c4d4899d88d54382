"""What happened, and what it cost.

The store of events and calls, the writer that fills it from the bus, price tables, and repricing. Nothing here
calls a provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

from bus._later import later

from .captured import Capture, Redact
from .captured import decode as decode_json
from .captured import encode as encode_json
from .content import SavedSession
from .costs import CostRow
from .database import Durability
from .event_forms import upcast
from .jobs import StoredJob
from .price_rows import PriceAlias, PriceRow
from .prices import Component, Explanation, PriceTable
from .queries import CallFilter, CallRow
from .reprice_reports import DayReprice, ModelReprice, RepriceReport, RepriceSums, SessionReprice
from .reprice_runs import CurrentPrices, RepriceRun
from .sessions import SessionRow
from .store import TraceStore
from .writer import WriterCore
from .writer_actor import Flush, TraceWriter
from .writer_state import StoreState, WriterOptions, WriterStatistics

if TYPE_CHECKING:
    from .free_sql import SqlResult
    from .pruning import PruneReport
    from .replay import StoredEvents
    from .saved_replies import SavedReplies
    from .statistics import ErrorRow, Percentiles, StatisticsRow
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".free_sql": ("SqlResult",),
            ".pruning": ("PruneReport",),
            ".replay": ("StoredEvents",),
            ".saved_replies": ("SavedReplies",),
            ".statistics": ("ErrorRow", "Percentiles", "StatisticsRow"),
        },
    )

__all__ = [
    "CallFilter",
    "CallRow",
    "Capture",
    "Component",
    "CostRow",
    "CurrentPrices",
    "DayReprice",
    "Durability",
    "ErrorRow",
    "Explanation",
    "Flush",
    "ModelReprice",
    "Percentiles",
    "PriceAlias",
    "PriceRow",
    "PriceTable",
    "PruneReport",
    "Redact",
    "RepriceReport",
    "RepriceRun",
    "RepriceSums",
    "SavedReplies",
    "SavedSession",
    "SessionReprice",
    "SessionRow",
    "SqlResult",
    "StatisticsRow",
    "StoreState",
    "StoredEvents",
    "StoredJob",
    "TraceStore",
    "TraceWriter",
    "WriterCore",
    "WriterOptions",
    "WriterStatistics",
    "decode_json",
    "encode_json",
    "upcast",
]
