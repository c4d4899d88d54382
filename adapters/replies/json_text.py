"""A JSON object from text that a model wrote."""

from __future__ import annotations

import json

from callboard.bus.values.json import JsonObject

from ..requests.surrogates import mend_json


def parse_object(text: str) -> JsonObject | None:
    """A JSON object from its text, or None if it is anything else. Tolerates raw control characters."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(mend_json(text.encode()), strict=False, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
