"""JSON from text that a model wrote: whole objects, prefixes of JSON, and repairs."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from callboard.bus.values.base import Json, JsonObject

from ..requests.text import mend_json


def parse_object(text: str) -> JsonObject | None:
    """Parse a JSON object; None for anything else. Raw control characters are accepted."""
    if not text.lstrip().startswith("{"):
        return None
    value = _parse(text)
    return value if isinstance(value, dict) else None


class Arguments(NamedTuple):
    """The arguments of a call, read from their text."""

    value: JsonObject | None
    unwrapped: bool = False
    """Whether the text was a JSON string that contains the object."""


def parse_arguments(text: str) -> Arguments:
    """Parse the arguments of a call. A JSON string that contains an object is unwrapped once."""
    if text.lstrip().startswith('"'):
        inner = _parse(text)
        value = parse_object(inner) if isinstance(inner, str) else None
        return Arguments(value, value is not None)
    return Arguments(parse_object(text))


def is_whole(text: str) -> bool:
    return text.strip() == "null" or _parse(text) is not None


def may_become_json(text: str) -> bool:
    """Whether a text is a JSON value or a prefix of one."""
    expected, closers = "value", ""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return _may_become_token(text[at:], expected)
        at = found.end()
        token = text[found.start()]
        if token in " \t\r\n":
            continue
        if token in "{[" and expected in _VALUES:
            closers += "}" if token == "{" else "]"
            expected = "key or end" if token == "{" else "value or end"
        elif token in "}]" and closers.endswith(token) and expected in ("key or end", "value or end", "comma"):
            closers = closers[:-1]
            expected = "comma" if closers else "nothing"
        elif token == "," and expected == "comma":
            expected = "key" if closers[-1] == "}" else "value"
        elif token == ":" and expected == "colon":
            expected = "value"
        elif token == '"' and expected in ("key", "key or end"):
            expected = "colon"
        elif token not in "{}[],:" and expected in _VALUES:
            expected = "comma" if closers else "nothing"
        else:
            return False
    return True


_VALUES = ("value", "value or end")
_TOKEN = re.compile(
    r'[ \t\r\n]+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![.eE\d])|true|false|null|[{}\[\],:]',
    re.DOTALL,
)
_CUT_STRING = re.compile(r'"(?:[^"\\]|\\.)*\\?\Z', re.DOTALL)
_CUT_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d*)?)?\Z")


def _may_become_token(rest: str, expected: str) -> bool:
    if _CUT_STRING.match(rest):
        return expected in (*_VALUES, "key", "key or end")
    cut = any(word.startswith(rest) for word in ("true", "false", "null")) or _CUT_NUMBER.match(rest)
    return bool(cut) and expected in _VALUES


def _parse(text: str) -> Json:
    try:
        value: Json = json.loads(mend_json(text.encode()), strict=False, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return value


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_NO_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?Infinity|NaN)', re.DOTALL)
"""A string, which is left alone, or a number that JSON doesn't have."""


class Mended(NamedTuple):
    """A repaired body that may decode."""

    text: bytes
    replaced: tuple[str, ...]
    """The replaced parts, in words."""


def mend_body(text: bytes) -> Mended | None:
    """The body with everything invalid in JSON replaced; None if there is none."""
    replaced: list[str] = []
    steps = (
        ("bytes that are no UTF-8", _as_utf8),
        ("NaN or Infinity", _without_constants),
        ("half a surrogate pair", mend_json),
    )
    for what, mend in steps:
        mended = mend(text)
        if mended != text:
            replaced.append(what)
            text = mended
    return Mended(text, tuple(replaced)) if replaced else None


def _as_utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _without_constants(text: bytes) -> bytes:
    return _NO_NUMBER.sub(lambda found: b"null" if found[1] else found[0], text)
