"""All checks. Importing this fills `adapters.conformance.checking.CHECKS`, in this order."""

from . import lifecycle, streams, requests, failures  # noqa: I001  (the order is the table's)

__all__ = ["failures", "lifecycle", "requests", "streams"]
