# Written by scripts/make_stubs.py.
from .call_columns import CallFilter, CallRow, CallStatus
from .otel import OtelExporter
from .postgres.store import PostgresStore
from .prices.rows import PriceAlias, PriceRow
from .prices.table import Component, Explanation, PriceTable
from .prompt_caches import CacheSavings, cache_savings
from .replay import SavedReplies, StoredEvents
from .reports import CurrentPrices, DayReprice, ModelReprice, PruneReport, RepriceReport, RepriceRun, RepriceSums, SessionReprice, SqlResult, StoreState, WriterOptions, WriterStatistics
from .rows import CostRow, CountedCall, ErrorRow, OpenReply, Percentiles, SavedSession, SessionRow, StatisticsRow, StoredBatch, StoredJob, StoredSubmission
from .shipping.shipper import ShippingOptions, ShippingStatistics, TraceShipper
from .sql.connection import SqlValue
from .sqlite.database import Durability
from .sqlite.store import TraceStore
from .store import Store
from .writing.content import Capture, Redact, decode_json, encode_json
from .writing.writer import Flush, TraceWriter, WriterCore
from callboard.bus.events.codec import upcast

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
