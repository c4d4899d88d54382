"""The checks themselves. Importing this fills `adapters.conformance.checking.CHECKS`, in this order."""

from . import lifecycle, streams, requests, settings, errors, attempts, cancelling  # noqa: I001  (the order is the table's)

__all__ = ["attempts", "cancelling", "errors", "lifecycle", "requests", "settings", "streams"]
