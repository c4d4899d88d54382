"""What is worked out for a schema is worked out once, though the schema comes anew with every call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import msgspec

from callboard.bus.values.json import JsonObject

_T = TypeVar("_T")


def remembered(work: Callable[[JsonObject], _T]) -> Callable[[JsonObject], _T]:
    """A function of a schema with a memory of its latest 256 results.

    The same schemas come with every call as equal objects, but not as the same object. A schema that is no JSON is
    worked on each time, and the writer of the body decides about it. A result belongs to all callers, so it must
    not be changed.

    Args:
        work: The function.
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
