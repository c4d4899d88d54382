"""JSON text of requests, whatever they hold. A tool's output may hold characters that UTF-8 can't encode."""

from __future__ import annotations

import msgspec

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.json import Json

from .surrogates import mend_json_value


def encode_json(value: Json) -> bytes:
    """JSON text, mended if UTF-8 can't encode it.

    Raises:
        InvalidRequestError: The value is no JSON.
    """
    try:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            return msgspec.json.encode(mend_json_value(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request is no JSON: {error}") from error
