"""How servers of the Responses protocol differ from OpenAI's own, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bus.errors import ConfigurationError
from bus.values.json import Json


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """What a server of this protocol takes and does.

    strict_tools: enforce a tool's schema where its definition leaves that open. stateless: send `store` and
    `include`. reasoning: takes reasoning options, and its own reasoning items back. keeps_developer: knows the
    developer role. images, documents: takes them. structured_output: obeys `text.format`. completed_at_limit: says
    ``completed`` where the reply was cut off at the token limit. late_ends: sends the ends of all items last, and
    never interleaves items. min_output_tokens: the smallest limit that it accepts. user: what it calls the id of
    an end user. cache_key: takes one, which leads the calls of a session to where their prompt is cached.
    """

    strict_tools: bool = False
    stateless: bool = True
    reasoning: bool = True
    keeps_developer: bool = True
    images: bool = True
    documents: bool = False
    tools: bool = True
    structured_output: bool = True
    completed_at_limit: bool = False
    late_ends: bool = False
    min_output_tokens: int = 16
    user: str = "user"
    cache_key: bool = False


OPENAI = Quirks(strict_tools=True, documents=True, user="safety_identifier", cache_key=True)
COMPATIBLE = Quirks()

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
    """The quirks of that name; without one, by the address. Raises ConfigurationError for an unknown name."""
    if name is None:
        host = base_url.partition("://")[2].partition("/")[0].partition(":")[0]
        return OPENAI if host.endswith(_OWN_HOSTS) else COMPATIBLE
    if isinstance(name, str) and name in QUIRKS:
        return QUIRKS[name]
    raise ConfigurationError(f"options.quirks of an OpenAI adapter: {name!r} is none of {', '.join(QUIRKS)}")
