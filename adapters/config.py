"""The configuration of an adapter and of its retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.values.base import Json

if TYPE_CHECKING:
    import httpx


KeySource: TypeAlias = Callable[[], str | Awaitable[str]]
"""A function that returns a key. It is called at the first use, and again if the provider rejects the key.

A plain function runs on the event loop, so it must not block for long.
"""


class KeyFile(msgspec.Struct, frozen=True):
    """A file with one key and nothing else: a `KeySource`."""

    path: str
    """The path of the file."""

    def __call__(self) -> str:
        return Path(self.path).read_text(encoding="utf-8")


OnRetry: TypeAlias = Callable[[AdapterError, int, float], object]
"""A function that gets the error, the number of the failed attempt from 1, and the seconds to wait before the next
attempt.
"""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of an adapter between attempts.

    The n-th retry (n from 0) waits `base_delay` · `backoff_multiplier`ⁿ seconds, at most `max_delay`. A wait that
    the provider requests takes precedence, up to `max_delay`.
    """

    base_delay: float = 1.0
    """Seconds before the first retry."""
    backoff_multiplier: float = 2.0
    """The factor from each wait to the next."""
    max_delay: float = 60.0
    """The longest wait, in seconds."""
    jitter: bool = True
    """Whether each wait is multiplied by a random factor in [1, 1.5)."""
    raise_on_long_hint: bool = False
    """Whether the call fails immediately if the provider requests a wait above `max_delay`."""
    on_retry: OnRetry | None = None
    """Called before each retry; see `OnRetry`. The function must not block. Its exceptions are logged."""


class AdapterConfig(msgspec.Struct, frozen=True):
    """The configuration of one adapter."""

    api_key: str | KeySource | None = None
    """The key, or a function that returns it, see `KeySource`; None for servers without keys."""
    base_url: str | None = None
    """The address, with or without its version suffix; defaults to the provider's own."""
    timeout_seconds: float = 600.0
    """Seconds for a whole call, including all its attempts."""
    max_retries: int = 2
    """The number of attempts after the first."""
    extra_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers that are sent with every request."""
    options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """The adapter type's own options."""
    retry: RetryPolicy = RetryPolicy()
    """The waits between attempts."""
    connect_timeout: float = 10.0
    """Seconds to connect, for each attempt."""
    first_event_timeout: float = 120.0
    """Seconds of silence before the first event of a streamed reply. If comments or pings arrive, the limit is
    five times as long.
    """
    stream_read_timeout: float = 120.0
    """Seconds of silence after the first event. Comments and pings extend it in the same way."""
    drain_for_usage: float = 0.0
    """Seconds for reading a cancelled stream to its end, for its usage.

    With 0 the connection is closed immediately, and the call's usage is partial or an estimate.
    """
    api_key_env: str | None = None
    """The environment variable of the key. Without a `base_url`, a variable of another vendor's key raises
    ConfigurationError.
    """
    keys: Mapping[str, str | KeySource] = msgspec.field(default_factory=dict)
    """More keys by name, such as one for each tenant. The host chooses the names. A call with ``key=`` uses only
    that key.
    """
    key_pool: Sequence[str] = ()
    """The names of the `keys` to use for calls without ``key=``, in place of `api_key`."""
    requests_per_minute: int | None = None
    """The largest number of requests in any minute, for all models together. More calls wait in order.

    None uses only the limits in the provider's headers.
    """
    tokens_per_minute: int | None = None
    """The largest number of tokens of requests and replies in any minute, for all models together. More calls wait
    in order.
    """
    max_wait_seconds: float | None = None
    """Seconds that a call may wait for a rate limit before a `RateLimitWaitError`; None for no limit but the
    call's timeout.
    """
    http_client: httpx.AsyncClient | None = None
    """The host's own client for requests, with its proxies, certificates or transport. The host closes it.

    None uses Callboard's own connections, at half the cost for each call.
    """

    def __repr__(self) -> str:
        key = None if self.api_key is None else "***"
        return f"AdapterConfig(api_key={key!r}, base_url={self.base_url!r})"
