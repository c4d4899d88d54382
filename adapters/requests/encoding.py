"""JSON text of what is sent, whatever stands in it: a tool's output may well hold what UTF-8 can't."""

from __future__ import annotations

import msgspec

from bus.errors import InvalidRequestError
from bus.values.json import Json

from .surrogates import mend_json_value


def encode_json(value: Json) -> bytes:
    """JSON text, mended if UTF-8 can't hold it. Raises InvalidRequestError for what is no JSON."""
    try:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            return msgspec.json.encode(mend_json_value(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request is no JSON: {error}") from error
