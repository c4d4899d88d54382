"""Differences between servers of the Responses protocol and OpenAI's own, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of one server."""

    strict_tools: bool = False
    """Whether a tool's schema is enforced by default."""
    stateless: bool = True
    """Whether `store` and `include` are sent."""
    reasoning: bool = True
    """Whether the server accepts reasoning options and its own reasoning items."""
    keeps_developer: bool = True
    """Whether the server supports the developer role."""
    images: bool = True
    """Whether the server accepts images."""
    documents: bool = False
    """Whether the server accepts documents."""
    tools: bool = True
    """Whether the server supports tools."""
    structured_output: bool = True
    """Whether the server obeys `text.format`."""
    completed_at_limit: bool = False
    """Whether the server reports ``completed`` for a reply that was cut off at the token limit."""
    late_ends: bool = False
    """Whether the server sends the ends of all items last, and never interleaves items."""
    min_output_tokens: int = 16
    """The smallest limit of output tokens that the server accepts."""
    user: str = "user"
    """The server's field for the id of an end user."""
    summaries: bool = False
    """Whether the server's known models can summarise their reasoning."""
    background: bool = False
    """Whether the server can continue a reply after its connection is lost."""
    cache_key: bool = False
    """Whether the server accepts a cache key, which routes a session's calls to their cached prompt."""


OPENAI = Quirks(
    strict_tools=True, documents=True, user="safety_identifier", cache_key=True, background=True, summaries=True
)
COMPATIBLE = Quirks(documents=True)

QUIRKS: Mapping[str, Quirks] = {
    "openai": OPENAI,
    "compatible": COMPATIBLE,
    "llama.cpp": Quirks(
        stateless=False,
        reasoning=False,
        keeps_developer=False,
        images=False,
        tools=False,
        structured_output=False,
        completed_at_limit=True,
        late_ends=True,
        min_output_tokens=1,
    ),
}

_OWN_HOSTS = ("api.openai.com", ".api.openai.com", ".openai.azure.com")


def choose_quirks(name: Json, base_url: str) -> Quirks:
    """The quirks by name, or else by address."""
    if name is None:
        host = base_url.partition("://")[2].partition("/")[0].partition(":")[0]
        return OPENAI if host.endswith(_OWN_HOSTS) else COMPATIBLE
    if isinstance(name, str) and name in QUIRKS:
        return QUIRKS[name]
    raise ConfigurationError(f"options.quirks of an OpenAI adapter: {name!r} is none of {', '.join(QUIRKS)}")
