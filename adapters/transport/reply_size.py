"""The one bound on what is read of a reply: whole or streamed, packed or not."""

from __future__ import annotations

from bus.errors import StreamError

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""The largest reply that is read into memory, unpacked; so also its largest event, and its longest line."""


def too_large(limit: int = MAX_REPLY_BYTES, what: str = "the reply") -> StreamError:
    """The error for what goes beyond a bound; another attempt would bring the same."""
    return StreamError(f"{what} is larger than {limit} bytes, and was not read further", retryable=False)
