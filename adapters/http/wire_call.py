"""A request as a provider's protocol writes it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.bus.values.messages import CallWarning

from ..requests.fitted import Loss


class WireCall(msgspec.Struct, frozen=True):
    """A request in a provider's own format."""

    path: str
    """The path below the base URL, with its query."""
    body: bytes
    """The body: JSON, unless a header gives another type; empty for a request without a body."""
    headers: Mapping[str, str] = {}
    """Headers of this request only. The key and the content type are added on sending."""
    warnings: tuple[CallWarning, ...] = ()
    """The request fields and values that were dropped, changed or estimated."""
    losses: tuple[Loss, ...] = ()
    """The parts of the history among the warnings."""
    tool_ids: Mapping[str, str] = {}
    """Our id of each tool call to its id in the body, for errors that name an id."""
    method: str = "POST"
    once: bool = False
    """Whether the provider bills the request each time that it arrives; see `HttpRequest`."""


def get(path: str, headers: Mapping[str, str] = {}) -> WireCall:
    return WireCall(path, b"", headers, method="GET")


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key as a bearer token; none if there is no key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
