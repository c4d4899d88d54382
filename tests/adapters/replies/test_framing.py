"""Server-sent events and newline-delimited JSON: the same events and lines however the network cuts them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.replies import decoders
from callboard.adapters.replies.decoders import NdjsonDecoder, SseDecoder, SseEvent
from callboard.bus.errors import StreamError

from ...support.fake_http import pieces

VECTORS: dict[str, tuple[bytes, list[tuple[bytes, bytes]]]] = {
    "lf": (b"event: a\ndata: 1\n\ndata: 2\n\n", [(b"a", b"1"), (b"", b"2")]),
    "crlf": (b"event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", [(b"a", b"1"), (b"", b"2")]),
    "cr": (b"event: a\rdata: 1\r\rdata: 2\r\r", [(b"a", b"1"), (b"", b"2")]),
    "mixed line ends": (b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\r", [(b"", b"1"), (b"", b"2"), (b"", b"3")]),
    "no space after the colon": (b"data:1\n\n", [(b"", b"1")]),
    "only one space is taken": (b"data:  1 \n\n", [(b"", b" 1 ")]),
    "line separators inside": ("data: a\u2028b\u2029c\x85d\x0ce\n\n".encode(),
        [(b"", "a\u2028b\u2029c\x85d\x0ce".encode())]),
    "byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", [(b"", b"1")]),
    "byte order mark later is text": (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", [(b"", b"1")]),
    "comments": (b": ping\n\n:\n\n: PROCESSING\ndata: 1\n: in between\n\n", [(b"", b"1")]),
    "several data lines": (b"data: a\ndata: b\ndata: c\n\n", [(b"", b"a\nb\nc")]),
    "empty data": (b"event: ping\ndata:\n\ndata: \n\ndata: 1\n\n", [(b"", b"1")]),
    "no data": (b"event: ping\n\ndata: 1\n\n", [(b"", b"1")]),
    "a name lasts one event": (b"event: a\n\ndata: 1\n\n", [(b"", b"1")]),
    "id and retry": (b"id: 7\nretry: 10\ndata: 1\nid: 8\n\n\n\n", [(b"", b"1")]),
    "unknown field": (b"dataset: 0\ndata: 1\nwhatever\n\n", [(b"", b"1")]),
    "end without blank line": (b"data: 1\n\nevent: b\ndata: 2\n", [(b"", b"1"), (b"b", b"2")]),
    "end without line end": (b"data: 1\n\ndata: 2", [(b"", b"1"), (b"", b"2")]),
    "end after cr": (b"data: 1\r", [(b"", b"1")]),
    "done": (b"data: [DONE]\n\n", [(b"", b"[DONE]")]),
    "nothing": (b"", []),
    "blank lines": (b"\n\n\r\n\r\r\n", []),
    "multibyte": ("data: ☃😀é\n\n".encode(), [(b"", "☃😀é".encode())]),
    "trailing spaces": (b'data: {"type":"ping"}     \n\n', [(b"", b'{"type":"ping"}     ')]),
}  # fmt: skip


def decode(chunks: list[bytes]) -> list[tuple[bytes, bytes]]:
    decoder = SseDecoder()
    events: list[SseEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    return [tuple(event) for event in events + decoder.close()]


@pytest.mark.parametrize("name", VECTORS)
def test_every_form_in_the_wild_is_read(name: str) -> None:
    """Whole, byte by byte and with empty pieces in between."""
    body, expected = VECTORS[name]
    assert decode([body]) == expected
    assert decode([body[at : at + 1] for at in range(len(body))]) == expected
    assert decode([piece for at in range(len(body)) for piece in (b"", body[at : at + 1])]) == expected


@given(st.sampled_from(sorted(VECTORS)), st.lists(st.integers(0, 60)))
def test_cuts_change_nothing(name: str, cuts: list[int]) -> None:
    """Any fragmentation of any vector gives the same events."""
    body, expected = VECTORS[name]
    assert decode(pieces(body, cuts)) == expected


@given(
    st.lists(st.sampled_from([b"data: x", b"data:", b"event: e", b": c", b"\r", b"\n", b"\r\n", b"y"])), st.data()
)
@example([b"\r", b"\n", b"data: x", b"\r", b"\n", b"\n"], None)
def test_any_text_is_read_the_same_in_any_pieces(parts: list[bytes], data: st.DataObject | None) -> None:
    """Also where the text is nonsense."""
    body = b"".join(parts)
    cuts = list(range(len(body))) if data is None else data.draw(st.lists(st.integers(0, max(len(body), 1))))
    assert decode(pieces(body, cuts)) == decode([body])


@given(st.lists(st.sampled_from([b"data: x", b"data: ", b"data: \ry", b"event: e", b": c", b"", b"", b"y"])))
@example([b"data: x", b"", b"event: e", b"data: x", b"", b"y"])
def test_lines_of_any_ends_say_the_same(lines: list[bytes]) -> None:
    """A piece that begins with an event, of which most have one line."""
    first = b": the body has begun\n"
    ended = [b"".join(line + end for line in lines) for end in (b"\n", b"\r\n")]
    assert decode([first, ended[0]]) == decode([first, ended[1]])


@given(st.binary())
def test_no_bytes_make_it_fail(body: bytes) -> None:
    """The decoder has no opinion on content, and closing twice gives nothing twice."""
    decoder = SseDecoder()
    decoder.feed(body)
    decoder.close()
    assert decoder.close() == []


def test_an_event_comes_with_its_blank_line_and_not_later() -> None:
    """Each line end that can end an event does so at once, without a byte of the next one."""
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert SseDecoder().feed(b"data: 1" + end) == [(b"", b"1")], end


@pytest.mark.parametrize("piece", [b"x", b"data: x\n"], ids=["one line", "many data lines"])
def test_an_event_without_end_is_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a line nor an event grows beyond the limit."""
    monkeypatch.setattr(decoders, "MAX_EVENT_BYTES", 1000)
    decoder = SseDecoder()
    with pytest.raises(StreamError, match="larger than 1000 bytes"):
        for _ in range(2000):
            decoder.feed(piece)


def test_many_events_may_be_larger_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for one event, not for the stream."""
    monkeypatch.setattr(decoders, "MAX_EVENT_BYTES", 1000)
    decoder = SseDecoder()
    assert sum(len(decoder.feed(b"data: " + b"x" * 500 + b"\n\n")) for _ in range(10)) == 10


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_of_no_event_are_kept_aside(size: int) -> None:
    """A bare error at the end of a body can be read there; comments and other fields can't."""
    body = b': ping\nid: 7\nretry: 1\nevent: a\ndata: 1\n\n{\n  "error": 3\n}\n\ndata: 2\n\n'
    decoder = SseDecoder()
    events = [event for at in range(0, len(body), size) for event in decoder.feed(body[at : at + size])]
    assert events + decoder.close() == [(b"a", b"1"), (b"", b"2")]
    assert decoder.stray == b'{\n  "error": 3\n}'


def test_what_is_kept_aside_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it a server sends."""
    monkeypatch.setattr(decoders, "MAX_STRAY_BYTES", 1000)
    decoder = SseDecoder()
    for _ in range(100):
        decoder.feed(b"x" * 700 + b"\n")
    assert 1000 <= len(decoder.stray) < 2100


# -- Newline-delimited JSON: the same lines however the network cuts them.


NDJSON_VECTORS: dict[str, tuple[bytes, list[bytes]]] = {
    "lf": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
    "crlf": (b'{"a":1}\r\n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}']),
    "a carriage return alone ends nothing": (b'{"a":\r1}\n', [b'{"a":\r1}']),
    "no end of the last line": (b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
    "no line end at all": (b'{"a":1}', [b'{"a":1}']),
    "blank lines": (b'\n\r\n{"a":1}\n\n  \t\r\n{"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
    "space around a value": (b'  {"a":1} \t\n', [b'{"a":1}']),
    "line separators inside": ('{"a":"b\u2028c\u2029d\x85e\x0cf\x1eg"}\n1\n'.encode(),
        ['{"a":"b\u2028c\u2029d\x85e\x0cf\x1eg"}'.encode(), b"1"]),
    "escaped line feed inside": (b'{"a":"b\\nc"}\n', [b'{"a":"b\\nc"}']),
    "multibyte": ('{"a":"☃😀é"}\n'.encode(), ['{"a":"☃😀é"}'.encode()]),
    "byte order mark": (b"\xef\xbb\xbf1\n2\n", [b"1", b"2"]),
    "byte order mark later is content": (b"1\n\xef\xbb\xbf2\n", [b"1", b"\xef\xbb\xbf2"]),
    "nothing": (b"", []),
}  # fmt: skip


def decode_ndjson(chunks: list[bytes]) -> list[bytes]:
    decoder = NdjsonDecoder()
    events: list[SseEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    events += decoder.close()
    assert all(name == b"" for name, _ in events)
    return [line for _, line in events]


@pytest.mark.parametrize("name", NDJSON_VECTORS)
def test_every_form_is_read_the_same_at_every_cut(name: str) -> None:
    """Whole, byte by byte, with empty pieces in between, and cut in two at every place."""
    body, expected = NDJSON_VECTORS[name]
    assert decode_ndjson([body]) == expected
    assert decode_ndjson([body[at : at + 1] for at in range(len(body))]) == expected
    assert decode_ndjson([piece for at in range(len(body)) for piece in (b"", body[at : at + 1])]) == expected
    for cut in range(len(body)):
        assert decode_ndjson([body[:cut], body[cut:]]) == expected


@given(st.lists(st.sampled_from([b'{"x":1}', b"\r", b"\n", b"\r\n", b" ", "☃\u2028".encode()])), st.data())
def test_ndjson_any_text_is_read_the_same_in_any_pieces(parts: list[bytes], data: st.DataObject) -> None:
    """Also where it is nonsense; and what is read is what stands between line feeds."""
    body = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, max(len(body), 1))))
    expected = [line for raw in body.split(b"\n") if (line := raw.strip(b" \t\r"))]
    assert decode_ndjson(pieces(body, cuts)) == expected


@given(st.binary())
def test_ndjson_no_bytes_make_it_fail(body: bytes) -> None:
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
