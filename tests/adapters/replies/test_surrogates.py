"""Halves of surrogate pairs never poison a reply or a history."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.requests.text import mend_json, mend_text


@given(st.text(st.characters(exclude_categories=[]) | st.sampled_from('\ud83d\ude00\\u"/n')))
def test_any_python_string_becomes_writable(text: str) -> None:
    """As text and as JSON, and only the halves change."""
    assert json.loads(msgspec.json.encode(mend_text(text))) == mend_text(text)
    mended = msgspec.json.decode(mend_json(json.dumps(text).encode()))
    assert mended == mend_text(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00 \ud83d"', rb'"\ufffd \ufffd"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
    ],
)
def test_only_halves_are_replaced(before: bytes, after: bytes) -> None:
    """Pairs stand, and an escaped backslash before `ud83d` begins no escape."""
    assert mend_json(before) == after


def test_good_text_is_not_copied() -> None:
    """The same object says that nothing was changed."""
    text = "☃😀 \\u0041"
    assert mend_text(text) is text
    body = rb'{"a": "\u2603"}'
    assert mend_json(body) is body
