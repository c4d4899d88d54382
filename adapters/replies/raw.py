"""The body or the events of one reply, kept as they came. They are decoded when the reply is over."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.bus.values.json import Json
from callboard.bus.values.raw_reply import RawReply

from ..transport.key_masking import masked
from .sse import BodyDecoder, SseEvent

MAX_RAW_BYTES = 16 * 1024 * 1024
"""The most bytes that are kept of one reply."""


class RawKept:
    """What is kept of one reply, over all connections that bring a part of it."""

    def __init__(self) -> None:
        self._body: bytes | None = None
        self._events: list[bytes] = []
        self._size = 0
        self._left_out = 0

    def body(self, body: bytes) -> None:
        """Keep the body of a reply that came whole."""
        if self._has_room(body):
            self._body = body

    def event(self, data: bytes) -> None:
        """Keep the data of the next event."""
        if self._has_room(data):
            self._events.append(data)

    def again(self, data: bytes) -> None:
        """Drop an event of those that came last: a server says it once more, over another connection.

        Args:
            data: The data, as the decoder gave it.
        """
        for index in reversed(range(len(self._events))):
            if self._events[index] is data:
                del self._events[index]
                self._size -= len(data)
                return

    def recording(self, decoder: BodyDecoder) -> BodyDecoder:
        """A decoder that keeps the data of each event it finds."""
        return _RecordingDecoder(decoder, self)

    def reply(self, hidden: Sequence[str]) -> RawReply:
        """What was kept.

        Args:
            hidden: The secrets that a server may have repeated.
        """
        return RawReply(
            body=None if self._body is None else _decoded(self._body, hidden),
            events=tuple(_decoded(data, hidden) for data in self._events),
            left_out=self._left_out,
        )

    def _has_room(self, data: bytes) -> bool:
        if self._left_out or self._size + len(data) > MAX_RAW_BYTES:  # what is kept has no gaps
            self._left_out += 1
            return False
        self._size += len(data)
        return True


class _RecordingDecoder:
    def __init__(self, decoder: BodyDecoder, kept: RawKept) -> None:
        self._decoder = decoder
        self._kept = kept

    def feed(self, chunk: bytes) -> list[SseEvent]:
        return self._noted(self._decoder.feed(chunk))

    def close(self) -> list[SseEvent]:
        return self._noted(self._decoder.close())

    def _noted(self, events: list[SseEvent]) -> list[SseEvent]:
        for _, data in events:
            if data != b"[DONE]":  # a mark of the end, which may or may not have come when the reply is over
                self._kept.event(data)
        return events


def _decoded(data: bytes, hidden: Sequence[str]) -> Json:
    text = masked(data.decode("utf-8", "replace"), hidden)
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value
