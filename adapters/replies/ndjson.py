"""Newline-delimited JSON, decoded from raw bytes.

Only a line feed ends a line. A carriage return before it, and white space around a value, do not belong to the
value. Blank lines are skipped, and the last line needs no end. Characters such as U+2028 may stand inside JSON
text, and a character may be cut between two pieces of the body. So the decoder looks at bytes and never at text.
"""

from __future__ import annotations

from ..transport.reply_size import MAX_REPLY_BYTES, too_large
from .sse import SseEvent

MAX_LINE_BYTES = MAX_REPLY_BYTES
"""The longest line that is accepted, in bytes. A longer line ends the stream in a StreamError."""


class NdjsonDecoder:
    """Takes bytes with `feed(bytes)` as they arrive, and `close()` at the end of the body. Both return the lines
    that are complete by then.

    A line is an event without a name. So the same code can read lines and server-sent events.
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
