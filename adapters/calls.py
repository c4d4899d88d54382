"""Requests and responses of every kind: the fields that conversations, embeddings, images and videos share."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.bus.values.messages import CallWarning
from callboard.bus.values.json import Json
from callboard.bus.values.shown import Shown
from callboard.bus.values.usage import TokenUsage

from .config import RetryPolicy


class CallRequest(Shown, frozen=True, kw_only=True):
    """One request to one model."""

    request_id: str
    """The caller's id of the request, which is passed to `cancel()`."""
    model: str
    """The model, with or without its ``provider:`` prefix. A name with a colon of its own needs the prefix
    (``ollama:llama3:8b``)."""
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Fields that are merged into the body, by the name of a protocol or an adapter; see `host_options`."""
    key: str | None = None
    """The name of one of `AdapterConfig.keys`; None leaves it to the adapter."""
    max_retries: int | None = None
    """The attempts after the first; None is the configuration's number."""
    retry: RetryPolicy | None = None
    """The waits between attempts; None are the configuration's."""
    timeout_seconds: float | None = None
    """The seconds for all attempts together; None is the configuration's number."""

    @property
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model


class RateLimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that the provider's headers report; None for a limit that they don't report."""

    requests_limit: int | None = None
    """Requests in all, in the provider's own period, mostly a minute."""
    requests_remaining: int | None = None
    """Requests that are left in the period."""
    tokens_limit: int | None = None
    """Tokens in all, in the period."""
    tokens_remaining: int | None = None
    """Tokens that are left in the period."""
    reset_at: str | None = None
    """When the period begins anew, as the provider writes it."""
    requests_reset: str | None = None
    """When the requests are all there again, as the provider writes it."""
    tokens_reset: str | None = None
    """When the tokens are all there again, as the provider writes it."""
    counts_output: bool = True
    """Whether the tokens are those of requests and replies, not of requests alone."""
    fixed_window: bool = False
    """Whether everything comes back at once when the period begins anew, not little by little until then."""


class CallResponse(Shown, frozen=True, kw_only=True):
    """The response to one request."""

    request_id: str
    """The id of the request."""
    model: str
    """The ``provider:name`` of the model that served the request."""
    provider: str
    """The adapter's name."""
    usage: TokenUsage
    """The tokens of the call."""
    latency_ms: int = 0
    """The milliseconds of the whole call, with all its attempts."""
    response_id: str | None = None
    """The provider's id of the reply."""
    warnings: tuple[CallWarning, ...] = ()
    """What was left out, changed or estimated."""
    rate_limit: RateLimitInfo | None = None
    """The provider's limits, as the reply's headers tell them; None if they tell none."""
    provider_request_id: str | None = None
    """The provider's id of the request, for its support."""
