"""What happened, and what it cost.

The store of events and calls, the writer that fills it from the bus, price tables, and repricing. Nothing here
calls a provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.bus._lazy_names import later
from callboard.bus.events.upcasting import upcast

from .filters import CallFilter
from .prices.rows import PriceAlias, PriceRow
from .prices.table import Component, Explanation, PriceTable
from .reports import (
    CurrentPrices,
    DayReprice,
    ModelReprice,
    PruneReport,
    RepriceReport,
    RepriceRun,
    RepriceSums,
    SessionReprice,
    SqlResult,
)
from .rows import (
    CallRow,
    CostRow,
    CountedCall,
    ErrorRow,
    OpenReply,
    Percentiles,
    SavedSession,
    SessionRow,
    StatisticsRow,
    StoredBatch,
    StoredJob,
    StoredSubmission,
)
from .store import Store
from .writing.captured import Capture, Redact
from .writing.captured import decode as decode_json
from .writing.captured import encode as encode_json
from .writing.state import StoreState, WriterOptions, WriterStatistics

if TYPE_CHECKING:
    from .export.otel import OtelExporter
    from .filters import CallStatus
    from .postgres.store import PostgresStore
    from .prompt_caches import CacheSavings, cache_savings
    from .replay import StoredEvents
    from .saved_replies import SavedReplies
    from .shipping.course import ShippingOptions
    from .shipping.shipper import ShippingStatistics, TraceShipper
    from .sql.connection import SqlValue
    from .sqlite.database import Durability
    from .sqlite.store import TraceStore
    from .writing.actor import Flush, TraceWriter
    from .writing.writer import WriterCore
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".export.otel": ("OtelExporter",),
            ".filters": ("CallStatus",),
            ".postgres.store": ("PostgresStore",),
            ".prompt_caches": ("CacheSavings", "cache_savings"),
            ".replay": ("StoredEvents",),
            ".saved_replies": ("SavedReplies",),
            ".shipping.course": ("ShippingOptions",),
            ".shipping.shipper": ("ShippingStatistics", "TraceShipper"),
            ".sql.connection": ("SqlValue",),
            ".sqlite.database": ("Durability",),
            ".sqlite.store": ("TraceStore",),
            ".writing.actor": ("Flush", "TraceWriter"),
            ".writing.writer": ("WriterCore",),
        },
    )

__all__ = [
    "CacheSavings",
    "CallFilter",
    "CallRow",
    "CallStatus",
    "Capture",
    "Component",
    "CostRow",
    "CountedCall",
    "CurrentPrices",
    "DayReprice",
    "Durability",
    "ErrorRow",
    "Explanation",
    "Flush",
    "ModelReprice",
    "OpenReply",
    "OtelExporter",
    "Percentiles",
    "PostgresStore",
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
    "ShippingOptions",
    "ShippingStatistics",
    "SqlResult",
    "SqlValue",
    "StatisticsRow",
    "Store",
    "StoreState",
    "StoredBatch",
    "StoredEvents",
    "StoredJob",
    "StoredSubmission",
    "TraceShipper",
    "TraceStore",
    "TraceWriter",
    "WriterCore",
    "WriterOptions",
    "WriterStatistics",
    "cache_savings",
    "decode_json",
    "encode_json",
    "upcast",
]
