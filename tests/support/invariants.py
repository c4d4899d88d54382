"""The stream invariants, as one check that every test of a stream uses: the conformance kit's own."""

from callboard.adapters.conformance.assertions import check_stream

__all__ = ["check_stream"]
