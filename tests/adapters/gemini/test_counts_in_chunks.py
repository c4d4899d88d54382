"""A streamed reply's counts, of which each chunk has some."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.providers.gemini import wire
from callboard.adapters.providers.gemini.wire import UsageCounts
from callboard.bus.errors import StreamError

from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires.reading import read_whole

COUNTS = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount")

CHUNK = st.dictionaries(st.sampled_from(COUNTS), st.none() | st.integers(0, 120), max_size=len(COUNTS))


@given(st.lists(CHUNK, min_size=1, max_size=12))
def test_the_last_of_each_count_is_the_total(chunks: list[dict[str, int | None]]) -> None:
    """Whether a chunk says all counts or some, and says them as numbers or as null."""
    counts = UsageCounts()
    last: dict[str, int] = {}
    for chunk in chunks:
        counts.add(msgspec.Raw(msgspec.json.encode(chunk)))
        last.update({name: count for name, count in chunk.items() if count is not None})
    total = counts.total()
    if not last:
        assert total is None
        return
    assert total is not None
    cached = last.get("cachedContentTokenCount", 0)
    assert total.cached_input_tokens == cached
    assert total.input_tokens == max(0, last.get("promptTokenCount", 0) - cached)
    thoughts = last.get("thoughtsTokenCount")
    assert total.output_tokens == last.get("candidatesTokenCount", 0) + (thoughts or 0)
    assert total.reasoning_tokens == thoughts


def test_the_usage_that_is_kept_is_the_last_with_the_prompts_count() -> None:
    """As it came; a chunk without the prompt's count adds to the figures, and does not stand for them."""
    counts = UsageCounts()
    for raw in (b'{"promptTokenCount":7}', b'{"promptTokenCount":8}', b'{"candidatesTokenCount":3}', b"null"):
        counts.add(msgspec.Raw(raw))
    total = counts.total()
    assert total is not None
    assert total.raw == msgspec.Raw(b'{"promptTokenCount":8}')
    assert (total.input_tokens, total.output_tokens) == (8, 3)


def test_no_usage_is_reported_where_none_came() -> None:
    """Nothing, or null."""
    counts = UsageCounts()
    assert counts.total() is None
    counts.add(wire.ABSENT)
    assert counts.total() is None


def test_a_number_in_place_of_the_counts_is_no_reply() -> None:
    """It has nothing but digits, which the forms of two chunks are compared without."""
    error = read_whole(WIRES[3], {**g.chunk(g.text("Hi"), finish="STOP"), "usageMetadata": 7}).error
    assert isinstance(error, StreamError)
