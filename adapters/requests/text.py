"""Text that UTF-8 can encode: halves of surrogate pairs become U+FFFD.

They come from programs that cut strings by UTF-16 units. Left in, they make a reply undecodable or every later
request unwritable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, TextBlock
from callboard.bus.values.messages import Message, Role

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|.)",  # any other escape, so that an escaped backslash starts no pair
    re.DOTALL,
)


def mend_json(text: bytes) -> bytes:
    """JSON text without half pairs in its escapes; the same object if there are none."""
    if b"\\u" not in text:
        return text
    mended = _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], text)
    return text if mended == text else mended


def mend_text(text: str) -> str:
    """Text that UTF-8 can encode: pairs joined, halves replaced; the same object if already valid."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def mend_object(value: JsonObject) -> JsonObject:
    """A JSON object with valid texts; the same object if already valid."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return {mend_text(name): mend_json_value(inner) for name, inner in value.items()}
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the writer of the body handles values that are not JSON
    return value


def mend_json_value(value: Json) -> Json:
    """A JSON value with valid texts."""
    match value:
        case str():
            return mend_text(value)
        case list():
            return [mend_json_value(item) for item in value]
        case dict():
            return {mend_text(name): mend_json_value(item) for name, item in value.items()}
        case _:
            return value


def encode_json(value: Json) -> bytes:
    """JSON text, repaired if UTF-8 can't encode it."""
    try:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            return msgspec.json.encode(mend_json_value(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the request is no JSON: {error}") from error


def as_text(value: Json) -> str:
    """Text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def join_text(content: Iterable[ContentBlock]) -> str:
    """Join all text blocks, with a blank line between them unless the text itself continues."""
    joined = ""
    for block in content:
        if isinstance(block, TextBlock):
            goes_on = not joined or joined[-1].isspace() or block.text[:1].isspace()
            joined += block.text if goes_on else f"\n\n{block.text}"
    return joined


def current_turn(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the last reply. The model must support them; earlier ones are fitted to it."""
    begin = len(messages)
    while begin and messages[begin - 1].role is not Role.ASSISTANT:
        begin -= 1
    return messages[begin:]
