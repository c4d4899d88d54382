"""Keys, lists and signatures in the JSON of Gemini's clients. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache

from callboard.adapters.providers.gemini.contents import NO_SIGNATURE
from callboard.bus.values.base import Json, JsonObject

from .wire import BadRequest

GEMINI = "gemini"
"""The provider of data that only Gemini understands."""

_UPPER = re.compile("_([a-z0-9])")


@lru_cache(maxsize=1024)
def _camel_name(name: str) -> str:
    return _UPPER.sub(lambda found: found[1].upper(), name)


def camel(value: Json, where: str) -> JsonObject:
    """An object with its top-level keys in camel case. If they already are, the same object.

    Raises:
        BadRequest: The value is not an object.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if "_" not in "".join(value):  # faster than a check of each name
        return value
    return {_camel_name(name): inner for name, inner in value.items()}


def each(value: Json, where: str) -> Sequence[Json]:
    """The items of a list. A single object counts as a list of one, as on Google's servers.

    Raises:
        BadRequest: The value is neither a list nor an object.
    """
    if value is None:
        return ()
    if isinstance(value, dict):
        return (value,)
    if not isinstance(value, list):
        raise BadRequest(f"{where} must be a list", param=where)
    return value


# --- Signatures ---

_MARK = b64encode(b"callboard").decode()  # 9 bytes: the text of the mark does not depend on later bytes
_MADE_UP = frozenset(
    {
        NO_SIGNATURE,
        "skip_thought_signature_validator",
        "context_engineering_is_the_way_to_go",
        b64encode(b"context_engineering_is_the_way_to_go").decode(),
    }
)
"""Values that Google documents for calls without a signature (ai.google.dev, Thought signatures)."""


def token_of(state: str) -> str:
    """The signature that represents another provider's opaque state for the client.

    It is a short digest, in base64 as the wire requires.
    """
    import hashlib

    digest = hashlib.sha256(state.encode("utf-8", "surrogatepass")).digest()
    return _MARK + b64encode(digest[:9]).decode()


def real_signature(value: Json) -> str | None:
    """A real signature of Gemini; None for any other value."""
    if not isinstance(value, str) or not value or value in _MADE_UP or value.startswith(_MARK):
        return None
    return value
