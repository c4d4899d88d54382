"""What is worked out for a schema is worked out once, though the schema comes anew with every call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import msgspec

from bus.values.json import JsonObject

_T = TypeVar("_T")


def remembered(work: Callable[[JsonObject], _T]) -> Callable[[JsonObject], _T]:
    """A function of a schema, done once for all that are equal; it remembers the latest 256.

    The same schemas come with every call as equal objects, not as the same. One that is no JSON is worked on each
    time: whoever writes the body decides about that. What comes back belongs to all callers: not to be changed.
    """

    @functools.lru_cache(maxsize=256)
    def by_text(schema: bytes) -> _T:
        return work(msgspec.json.decode(schema, type=JsonObject))

    @functools.wraps(work)
    def remembering(schema: JsonObject) -> _T:
        try:
            text = msgspec.json.encode(schema)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return work(schema)
        return by_text(text)

    return remembering
