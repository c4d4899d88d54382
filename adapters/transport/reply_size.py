"""The one bound on what is read of a reply: whole or streamed, packed or not."""

from __future__ import annotations

from callboard.bus.errors import StreamError

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""The largest reply that is read into memory, in bytes after unpacking. Its largest event and its longest line
have the same limit."""


def too_large(limit: int = MAX_REPLY_BYTES, what: str = "the reply") -> StreamError:
    """The error for a reply beyond a limit. It is not retried, because another attempt would bring the same.

    Args:
        limit: The limit in bytes.
        what: The name of the thing that is too large.
    """
    return StreamError(f"{what} is larger than {limit} bytes, and was not read further", retryable=False)
