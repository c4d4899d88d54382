"""How an adapter reaches its provider, and how it waits between attempts."""

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
"""Gives a key when it is asked. It is asked at the key's first use, and again when the provider refuses the key. A
plain function runs on the event loop, so it must not block for long."""


class KeyFile(msgspec.Struct, frozen=True):
    """A file that holds one key and nothing else: a `KeySource`."""

    path: str
    """The path of the file."""

    def __call__(self) -> str:
        """The text of the file."""
        return Path(self.path).read_text(encoding="utf-8")


OnRetry: TypeAlias = Callable[[AdapterError, int, float], object]
"""A function that gets the error, the number of the retry from 0, and the wait before it in seconds."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter waits between attempts.

    The n-th retry (n from 0) waits `base_delay` · `backoff_multiplier`ⁿ seconds, at most `max_delay`. A hint of
    the provider goes before that, also at most `max_delay`.
    """

    base_delay: float = 1.0
    """Seconds before the first retry."""
    backoff_multiplier: float = 2.0
    """The factor by which each wait is longer than the wait before it."""
    max_delay: float = 60.0
    """The longest wait, in seconds."""
    jitter: bool = True
    """Whether each wait is multiplied by a random factor in [1, 1.5)."""
    raise_on_long_hint: bool = False
    """Whether a hint above `max_delay` ends the call at once."""
    on_retry: OnRetry | None = None
    """Called with each attempt that failed and is followed by another: its error, its number from 1, and the
    seconds until the next attempt. It must not block. An exception from it is logged."""


class AdapterConfig(msgspec.Struct, frozen=True):
    """How to reach a provider."""

    api_key: str | KeySource | None = None
    """The key, or a function that gives it, see `KeySource`; None for servers that need none."""
    base_url: str | None = None
    """The address, with or without its version suffix; None for the provider's own."""
    timeout_seconds: float = 600.0
    """Seconds for a whole call, with all its attempts."""
    max_retries: int = 2
    """Attempts after the first."""
    extra_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers that are sent with every request."""
    options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Options that only this type of adapter knows."""
    retry: RetryPolicy = RetryPolicy()
    """How to wait between attempts."""
    connect_timeout: float = 10.0
    """Seconds for the connection of each attempt."""
    first_event_timeout: float = 120.0
    """The seconds for which a streamed reply may be silent before its first event. While signs of life come, it is
    five times as many."""
    stream_read_timeout: float = 120.0
    """The same after the first event."""
    drain_for_usage: float = 0.0
    """Seconds for which a cancelled stream is read on, in silence, for the usage at its end. With 0 the connection
    is closed at once, and the call's usage is partial or an estimate."""
    api_key_env: str | None = None
    """The variable that the key came from. Without a `base_url` it tells whose key it is, and a key that may be of
    another vendor is refused."""
    keys: Mapping[str, str | KeySource] = msgspec.field(default_factory=dict)
    """Further keys by names of the host's, such as one for each tenant. A call that says ``key=`` uses the one of
    that name and no other."""
    key_pool: Sequence[str] = ()
    """The names of those `keys` over which the calls are spread that name none, in place of `api_key`."""
    requests_per_minute: int | None = None
    """Requests that may be sent in any minute, all models together; further calls wait in order. None is no limit
    but what the provider's headers say."""
    tokens_per_minute: int | None = None
    """Tokens of requests and replies in any minute, likewise."""
    max_wait_seconds: float | None = None
    """Seconds for which a call may wait for a rate limit, before a `RateLimitWaitError`; None is as long as the
    call may take."""
    http_client: httpx.AsyncClient | None = None
    """A client of the host's that requests go over, with proxies, certificates or a transport of its own. The host
    closes it. None is connections of our own, which cost a call half as much."""

    def __repr__(self) -> str:
        key = None if self.api_key is None else "***"
        return f"AdapterConfig(api_key={key!r}, base_url={self.base_url!r})"
