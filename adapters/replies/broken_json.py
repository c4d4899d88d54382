"""Bodies that are nearly JSON. They are read as other clients read them, with replacements for the unreadable
parts.

Nothing here is done before a body has failed to decode. NaN and Infinity, which Python's own writer sends, become
null. Bytes that are no UTF-8 and halves of surrogate pairs become U+FFFD. The caller reports the replacements.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..requests.surrogates import mend_json

_NO_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?Infinity|NaN)', re.DOTALL)
"""A string, which is left alone, or a number that JSON doesn't have."""


class Mended(NamedTuple):
    """A body that may now decode."""

    text: bytes
    """The body."""
    replaced: tuple[str, ...]
    """The replaced parts, in words."""


def mend_body(text: bytes) -> Mended | None:
    """The body with replacements for everything that JSON can't hold; None if the body holds no such thing."""
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
