"""A request as a provider's protocol writes it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..contract import CallWarning


class WireCall(msgspec.Struct, frozen=True):
    """A request as a provider wants it.

    path: below the base URL. body: JSON, unless a header says otherwise. warnings: what was left out. tool_ids:
    from our id of a tool call to the one in the body, so that an error which names one can be understood.
    once: see `HttpRequest`.
    """

    path: str
    body: bytes
    headers: Mapping[str, str] = {}
    warnings: tuple[CallWarning, ...] = ()
    tool_ids: Mapping[str, str] = {}
    method: str = "POST"
    once: bool = False


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key as a bearer token; none if there is no key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
