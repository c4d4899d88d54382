"""JSON text of what is sent, whatever stands in it: a tool's output may well hold what UTF-8 can't."""

from __future__ import annotations

import json

import msgspec

from bus.errors import InvalidRequestError
from bus.json_types import Json


def encode_json(value: Json) -> bytes:
    """JSON text of any JSON value, also of one with half surrogate pairs in it (a question mark stands for each).

    Raises InvalidRequestError for what is no JSON.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request is no JSON: {error}") from error
