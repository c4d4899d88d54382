"""Arguments that arrive in pieces, or all of them so far in each chunk, are the same arguments in the end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.replies.block import GrowingArguments, Meaning
from callboard.adapters.replies.json_text import is_whole, may_become_json, parse_arguments

KEYS = st.sampled_from(["a", "b", '{"a', "ab"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=6,
)
TEXTS = st.builds(
    lambda value, spaces: json.dumps(value, indent=spaces),
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=2),
    st.sampled_from([None, 1]),
)
CUTS = st.lists(st.integers(0, 60), max_size=8)


def joined(fragments: list[str], meaning: Meaning = "either") -> str:
    """What the fragments come to. The deltas must add up to it."""
    arguments = GrowingArguments(meaning)
    deltas = [arguments.add(fragment) for fragment in fragments]
    so_far = arguments.text
    deltas.append(arguments.settle())
    assert "".join(deltas) == so_far == arguments.text == "".join(arguments.parts)
    return so_far


def places(text: str, cuts: list[int]) -> list[int]:
    """Sorted places within a text."""
    return sorted({min(cut, len(text)) for cut in cuts} | {len(text)})


@given(TEXTS, CUTS)
def test_pieces_come_to_the_arguments_at_any_cut(text: str, cuts: list[int]) -> None:
    """Even where a piece begins like all that came before it."""
    ends = places(text, cuts)
    assert joined([text[start:end] for start, end in zip([0, *ends], ends, strict=False)]) == text


@given(TEXTS, CUTS)
def test_arguments_sent_so_far_come_to_the_arguments_at_any_cut(text: str, cuts: list[int]) -> None:
    """Each chunk is a longer beginning of the same JSON."""
    assert joined([text[:end] for end in places(text, cuts)]) == text


@given(TEXTS, CUTS)
def test_arguments_in_a_string_are_unwrapped_however_they_come(text: str, cuts: list[int]) -> None:
    """The JSON string that holds the object is cut, or resent, as the object would be."""
    wrapped = json.dumps(text)
    ends = places(wrapped, cuts)
    pieces = [wrapped[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    for fragments in (pieces, [wrapped[:end] for end in ends]):
        assert parse_arguments(joined(fragments)) == (json.loads(text), True)


@pytest.mark.parametrize(
    ("meaning", "fragments", "text"),
    [
        ("either", ['{"a":', '{"a":1}}'], '{"a":{"a":1}}'),
        ("either", ['{"a":', '{"a":1}'], '{"a":1}'),
        ("either", ['{"a":', '{"a":', "1}}"], '{"a":{"a":1}}'),
        ("either", ['{"a":', '{"a":{', '{"a":{}}'], '{"a":{}}'),
        ("either", ['{"a":1}', '{"a":1}'], '{"a":1}'),
        ("either", ['{"a":1}', '{"a":1}{"b":2}'], '{"a":1}{"a":1}{"b":2}'),
        ("either", ["", '{"a"', '{"a":1', '{"a"', '{"a":1}'], '{"a":1}'),
        ("pieces", ['{"a":', '{"a":1}'], '{"a":{"a":1}'),
        ("so_far", ['{"a":1}', '{"a":1} '], '{"a":1} '),
    ],
)
def test_fragments_mean_what_makes_json(meaning: Meaning, fragments: list[str], text: str) -> None:
    """What came before is replaced unless it was whole, or only the pieces make JSON. A quirk forces either."""
    assert joined(fragments, meaning) == text


@given(TEXTS)
def test_every_beginning_of_json_may_become_json(text: str) -> None:
    """And what no JSON begins with may not."""
    assert all(may_become_json(text[:end]) for end in range(len(text) + 1))
    assert is_whole(text)
    assert not may_become_json(text + "}")
    assert not may_become_json("{" + text)


@pytest.mark.parametrize(
    "text", ["{,", '{"a" 1', "[1 2", "{1", "tru3", "1.2.3", "]", '{"a":}', "[,", "nul}", '{"a":1,}']
)
def test_what_no_json_begins_with_is_told(text: str) -> None:
    """Wherever the fault is."""
    assert not may_become_json(text)
