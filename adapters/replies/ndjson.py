"""Newline-delimited JSON, decoded from raw bytes.

Only a line feed ends a line; a carriage return before it, and white space around a value, is none of the value.
Blank lines are skipped, and the last line needs no end. Characters such as U+2028 may stand inside JSON text, and
a character may be cut between two pieces of the body: nothing here looks at text.
"""

from __future__ import annotations

from ..transport.reply_size import MAX_REPLY_BYTES, too_large
from .sse import SseEvent

MAX_LINE_BYTES = MAX_REPLY_BYTES
"""The longest line that is accepted; a longer one ends the stream in a StreamError."""


class NdjsonDecoder:
    """`feed(bytes)` as they arrive, `close()` at the end of the body; both return the lines now complete.

    A line is an event without a name, so that the same code reads it that reads server-sent events.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the unfinished line; joined once its end has come
        self._size = 0
        self._at_start = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        head, end, rest = chunk.partition(b"\n")
        self._hold(head)
        if not end:
            return []
        lines = [self._take(), *rest.split(b"\n")]
        self._hold(lines.pop())
        return self._events(lines)

    def close(self) -> list[SseEvent]:
        return self._events([self._take()])

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > MAX_LINE_BYTES:
                raise too_large(MAX_LINE_BYTES, "a line of the reply")

    def _take(self) -> bytes:
        line = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return line

    def _events(self, lines: list[bytes]) -> list[SseEvent]:
        if self._at_start and lines[0]:
            self._at_start = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        return [(b"", line) for raw in lines if (line := raw.strip(b" \t\r"))]
