"""The trace of events and calls, and the costs of calls.

This package has the store, the writer that fills it from the bus, price tables, and repricing. It calls no
provider.
"""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".call_columns": "CallFilter CallRow CallStatus",
        ".otel": "OtelExporter",
        ".postgres.store": "PostgresStore",
        ".prices.rows": "PriceAlias PriceRow",
        ".prices.table": "Component Explanation PriceTable",
        ".prompt_caches": "CacheSavings cache_savings",
        ".replay": "SavedReplies StoredEvents",
        ".reports": (
            "CurrentPrices DayReprice ModelReprice PruneReport RepriceReport RepriceRun RepriceSums "
            "SessionReprice SqlResult StoreState WriterOptions WriterStatistics"
        ),
        ".rows": (
            "CostRow CountedCall ErrorRow OpenReply Percentiles SavedSession SessionRow StatisticsRow "
            "StoredBatch StoredJob StoredSubmission"
        ),
        ".shipping.shipper": "ShippingOptions ShippingStatistics TraceShipper",
        ".sql.connection": "SqlValue",
        ".sqlite.database": "Durability",
        ".sqlite.store": "TraceStore",
        ".store": "Store",
        ".writing.content": "Capture Redact decode_json encode_json",
        ".writing.writer": "Flush TraceWriter WriterCore",
        "callboard.bus.events.codec": "upcast",
    },
)
