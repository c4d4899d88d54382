"""The searches that ground a reply. They are billed apart from its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable

from callboard.bus.values.json import Json

_EACH_QUERY = re.compile(r"gemini-(?:[3-9]|\d\d)")
"""Models since Gemini 3 pay for each search; those before for each request that was grounded in any."""


def grounding_fees(metadata: Json, model: str) -> dict[str, int]:
    """Counts by the names of their rates: searches of the web, and requests that used the map."""
    if not isinstance(metadata, dict):
        return {}
    queries = sum(1 for query in _list(metadata.get("webSearchQueries")) if query)
    chunks = [chunk for chunk in _list(metadata.get("groundingChunks")) if isinstance(chunk, dict)]
    searches = max(queries, int(any("web" in chunk for chunk in chunks)))
    fees = {
        "web_search": searches if _EACH_QUERY.search(model) else min(searches, 1),
        "map_search": int(any("maps" in chunk for chunk in chunks)),
    }
    return {name: count for name, count in fees.items() if count}


def _list(value: Json) -> Iterable[Json]:
    return value if isinstance(value, list) else ()
