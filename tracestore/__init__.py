"""What happened, and what it cost.

The store of events and calls, the writer that fills it from the bus, price tables, and repricing. Nothing here
calls a provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus._later import later

from .event_forms import upcast
from .prices.rows import PriceAlias, PriceRow
from .prices.table import Component, Explanation, PriceTable
from .queries import CallFilter, CallRow
from .reports import DayReprice, ModelReprice, RepriceReport, RepriceSums, SessionReprice
from .sql.calls.costs import CostRow
from .sql.content import SavedSession
from .sql.jobs import StoredJob
from .sql.repricing.history import CurrentPrices, RepriceRun
from .sql.sessions import SessionRow
from .sqlite.database import Durability
from .sqlite.store import TraceStore
from .writing.actor import Flush, TraceWriter
from .writing.captured import Capture, Redact
from .writing.captured import decode as decode_json
from .writing.captured import encode as encode_json
from .writing.state import StoreState, WriterOptions, WriterStatistics
from .writing.writer import WriterCore

if TYPE_CHECKING:
    from .replay import StoredEvents
    from .saved_replies import SavedReplies
    from .sql.calls.statistics import ErrorRow, Percentiles, StatisticsRow
    from .sqlite.free_sql import SqlResult
    from .sqlite.upkeep.pruning import PruneReport
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".sqlite.free_sql": ("SqlResult",),
            ".sqlite.upkeep.pruning": ("PruneReport",),
            ".replay": ("StoredEvents",),
            ".saved_replies": ("SavedReplies",),
            ".sql.calls.statistics": ("ErrorRow", "Percentiles", "StatisticsRow"),
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
