"""The stream invariants as one check for all tests of streams: the conformance kit's own."""

from callboard.adapters.conformance import check_stream

__all__ = ["check_stream"]
