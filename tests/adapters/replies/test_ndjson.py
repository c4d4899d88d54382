"""Newline-delimited JSON: the same lines however the network cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.replies import decoders
from callboard.adapters.replies.decoders import NdjsonDecoder, SseEvent
from callboard.bus.errors import StreamError

from ...support.fake_http import pieces

VECTORS: dict[str, tuple[bytes, list[bytes]]] = {
    "lf": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
    "crlf": (b'{"a":1}\r\n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}']),
    "a carriage return alone ends nothing": (b'{"a":\r1}\n', [b'{"a":\r1}']),
    "no end of the last line": (b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
    "no line end at all": (b'{"a":1}', [b'{"a":1}']),
    "blank lines": (b'\n\r\n{"a":1}\n\n  \t\r\n{"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
    "space around a value": (b'  {"a":1} \t\n', [b'{"a":1}']),
    "line separators inside": (
        '{"a":"b\u2028c\u2029d\x85e\x0cf\x1eg"}\n1\n'.encode(),
        ['{"a":"b\u2028c\u2029d\x85e\x0cf\x1eg"}'.encode(), b"1"],
    ),
    "escaped line feed inside": (b'{"a":"b\\nc"}\n', [b'{"a":"b\\nc"}']),
    "multibyte": ('{"a":"☃😀é"}\n'.encode(), ['{"a":"☃😀é"}'.encode()]),
    "byte order mark": (b"\xef\xbb\xbf1\n2\n", [b"1", b"2"]),
    "byte order mark later is content": (b"1\n\xef\xbb\xbf2\n", [b"1", b"\xef\xbb\xbf2"]),
    "nothing": (b"", []),
}


def decode(chunks: list[bytes]) -> list[bytes]:
    decoder = NdjsonDecoder()
    events: list[SseEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    events += decoder.close()
    assert all(name == b"" for name, _ in events)
    return [line for _, line in events]


@pytest.mark.parametrize("name", VECTORS)
def test_every_form_is_read_the_same_at_every_cut(name: str) -> None:
    """Whole, byte by byte, with empty pieces in between, and cut in two at every place."""
    body, expected = VECTORS[name]
    assert decode([body]) == expected
    assert decode([body[at : at + 1] for at in range(len(body))]) == expected
    assert decode([piece for at in range(len(body)) for piece in (b"", body[at : at + 1])]) == expected
    for cut in range(len(body)):
        assert decode([body[:cut], body[cut:]]) == expected


@given(st.lists(st.sampled_from([b'{"x":1}', b"\r", b"\n", b"\r\n", b" ", "☃\u2028".encode()])), st.data())
def test_any_text_is_read_the_same_in_any_pieces(parts: list[bytes], data: st.DataObject) -> None:
    """Also where it is nonsense; and what is read is what stands between line feeds."""
    body = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, max(len(body), 1))))
    expected = [line for raw in body.split(b"\n") if (line := raw.strip(b" \t\r"))]
    assert decode(pieces(body, cuts)) == expected


@given(st.binary())
def test_no_bytes_make_it_fail(body: bytes) -> None:
    """The decoder has no opinion on content, and closing twice gives nothing twice."""
    decoder = NdjsonDecoder()
    decoder.feed(body)
    decoder.close()
    assert decoder.close() == []


def test_a_line_comes_with_its_line_feed_and_not_later() -> None:
    """Without a byte of the next one."""
    assert NdjsonDecoder().feed(b"1\n") == [(b"", b"1")]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for one line, not for the stream."""
    monkeypatch.setattr(decoders, "MAX_LINE_BYTES", 1000)
    decoder = NdjsonDecoder()
    assert sum(len(decoder.feed(b"x" * 900 + b"\n")) for _ in range(5)) == 5
    with pytest.raises(StreamError, match="larger than 1000 bytes"):
        for _ in range(2000):
            decoder.feed(b"x")
