"""Decoders for server-sent events, newline-delimited JSON and JSON text, from raw bytes.

Decoders do no I/O and never fail because of content. They follow the WHATWG rules, except where providers break
these rules. The last event counts even if no blank line follows it. Events without data are skipped, except for
errors. A field `error` (llama.cpp) is an event of that name. The data of `event: error` may be a line without a
field name, or missing. A field `data` may lack its colon. Lines end in LF, CRLF or CR only: U+2028 may occur
inside JSON text.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple, Protocol, TypeAlias

from callboard.bus.values.base import Json, JsonObject

from ..requests.content import repair_json
from ..transport.transport import MAX_REPLY_BYTES, too_large


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


def overlap(text: str, mark: str) -> int:
    """The number of characters at the end of a text that may start or be a mark."""
    return next((size for size in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-size:])), 0)


def may_become_json(text: str) -> bool:
    """Whether a text is a JSON value, or the start of a JSON value."""
    expected, closers = "value", ""
    at, token_at = 0, re.compile(_TOKEN, re.DOTALL).match
    while at < len(text):
        found = token_at(text, at)
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
# The patterns of broken JSON are strings. Compiling them during the import would slow it, and few processes use
# them.
_TOKEN = r'[ \t\r\n]+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![.eE\d])|true|false|null|[{}\[\],:]'
_CUT_STRING = r'"(?:[^"\\]|\\.)*\\?\Z'
_CUT_NUMBER = r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d*)?)?\Z"


def _may_become_token(rest: str, expected: str) -> bool:
    if re.match(_CUT_STRING, rest, re.DOTALL):
        return expected in (*_VALUES, "key", "key or end")
    cut = any(word.startswith(rest) for word in ("true", "false", "null")) or re.match(_CUT_NUMBER, rest)
    return bool(cut) and expected in _VALUES


def _parse(text: str) -> Json:
    try:
        value: Json = json.loads(repair_json(text.encode()), strict=False, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return value


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_NO_NUMBER = rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?Infinity|NaN)'
"""A string, which is not changed, or a number that JSON doesn't have."""


class RepairedBody(NamedTuple):
    """A body after repairs. It may still be invalid JSON."""

    text: bytes
    replaced: tuple[str, ...]
    """The kinds of text that were replaced, in words."""


def repair_body(text: bytes) -> RepairedBody | None:
    """Replace all text that is invalid in JSON. Return None if there is none."""
    replaced: list[str] = []
    steps = (
        ("invalid UTF-8", _as_utf8),
        ("NaN or Infinity", _without_constants),
        ("half a surrogate pair", repair_json),
    )
    for what, repair_request in steps:
        repaired = repair_request(text)
        if repaired != text:
            replaced.append(what)
            text = repaired
    return RepairedBody(text, tuple(replaced)) if replaced else None


def _as_utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _without_constants(text: bytes) -> bytes:
    return re.sub(_NO_NUMBER, lambda found: b"null" if found[1] else found[0], text, flags=re.DOTALL)


MAX_EVENT_BYTES = MAX_REPLY_BYTES
"""The largest event that is accepted, in bytes. A larger event ends the stream with a StreamError."""

MAX_STRAY_BYTES = 64 * 1024
"""The maximum number of bytes that are kept of lines outside of events."""


SseEvent: TypeAlias = tuple[bytes, bytes]
"""The `event:` field (empty if missing), and the `data:` lines, joined by a line feed."""


class BodyDecoder(Protocol):
    """Cuts a body into events. `feed` and `close` return the complete ones."""

    def feed(self, chunk: bytes) -> list[SseEvent]: ...
    def close(self) -> list[SseEvent]: ...


def looks_like_events(body: bytes) -> bool:
    """Whether a body starts like server-sent events. The content type is ignored."""
    return body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(
        (b"data:", b"data ", b"data{", b"event:", b"error:", b"id:", b"retry:", b":")
    )


def without_done_mark(body: bytes) -> bytes:
    """Remove the end mark of a stream from a whole JSON body, because some gateways append it."""
    if not body.startswith(b"{") or not body.rstrip().endswith(b"[DONE]"):
        return body
    return body[: body.rindex(b"[DONE]")].rstrip().removesuffix(b"data:")


class SseDecoder:
    """Decodes bytes to events. Call `feed` for each piece of the body, and `close` at the end. Both return the
    complete events.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # pieces of the unfinished line, joined at its end
        self._size = 0
        self._after_cr = False
        self._at_start = True
        self._name = b""
        self._data: list[bytes] = []
        self._data_size = 0
        self._other_lines: list[bytes] = []
        self._other_size = 0
        self._named_at = 0  # the number of stray lines when the event got its name

    @property
    def other_lines(self) -> bytes:
        """The first 64 KiB of lines outside of events: some servers end a stream with a bare error."""
        return b"\n".join(self._other_lines)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        is_partial = self._pieces or self._data or self._name or self._at_start
        if b"\r" in chunk or self._after_cr:
            if not is_partial and not self._after_cr and len(chunk) <= MAX_EVENT_BYTES:
                return self._feed_crlf_events(chunk)
            chunk = self._normalise_line_ends(chunk)
        if is_partial:
            end = chunk.find(b"\n\n") + 2  # the end of an event from an earlier chunk
            if end == 1 or len(chunk) > MAX_EVENT_BYTES:
                return self._feed_lines(chunk)
            return self._feed_lines(chunk[:end]) + self._feed_events(chunk[end:])
        return self._feed_events(chunk)

    def _feed_events(self, chunk: bytes) -> list[SseEvent]:
        """Decode a usual chunk: it starts with an event, and most events have one line of data and
        perhaps a name.
        """
        if len(chunk) > MAX_EVENT_BYTES:
            return self._feed_lines(chunk)
        events: list[SseEvent] = []
        blocks = chunk.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            first, _, second = block.partition(b"\n")
            if not second and first[:6] == b"data: ":
                if len(first) > 6:
                    events.append((b"", first[6:]))
            elif second[:6] == b"data: " and first[:6] == b"event:" and b"\n" not in second:
                if len(second) > 6:
                    events.append((first[6:].strip(), second[6:]))
            else:
                events += self._feed_lines(block + b"\n\n")
        return events + self._feed_lines(rest) if rest else events

    def _feed_crlf_events(self, chunk: bytes) -> list[SseEvent]:
        """Like `_feed_events` for CRLF, without copying one-line events."""
        events: list[SseEvent] = []
        blocks = chunk.split(b"\r\n\r\n")
        rest = blocks.pop()
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block and b"\r" not in block:
                if len(block) > 6:
                    events.append((b"", block[6:]))
            else:
                events += self._feed_events(self._normalise_line_ends(block + b"\r\n\r\n"))
        return events + self._feed_lines(self._normalise_line_ends(rest)) if rest else events

    def _feed_lines(self, chunk: bytes) -> list[SseEvent]:
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        if self._pieces:
            self._pieces.append(chunk)
            chunk = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        lines = chunk.split(b"\n")
        self._hold(lines.pop())
        return self._read(lines)

    def close(self) -> list[SseEvent]:
        lines = [b"".join(self._pieces), b""]
        self._pieces.clear()
        return self._read(lines)

    def _normalise_line_ends(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if chunk.endswith(b"\r"):
            self._after_cr = True  # an LF at the start of the next chunk belongs to this CR
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > MAX_EVENT_BYTES:
                raise too_large(MAX_EVENT_BYTES, "a line of the reply")

    def _read(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        if self._at_start and lines:
            self._at_start = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._data_size += len(line)
            elif not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    if data:
                        events.append((self._name, data))
                    self._data = []
                    self._data_size = 0
                elif self._name == b"error":
                    events.append((self._name, b"\n".join(self._other_lines[self._named_at :])))
                    del self._other_lines[self._named_at :]
                self._name = b""
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
                self._named_at = len(self._other_lines)
            elif line.startswith(b"error:"):
                self._name = b"error"
                self._data.append(line[6:].strip())
                self._data_size += len(line)
            elif line[:4] == b"data" and line[4:].lstrip()[:1] in (b"", b"{", b"["):  # some servers omit the colon
                self._data.append(line[4:].lstrip())
                self._data_size += len(line)
            elif not line.startswith((b":", b"id:", b"retry:")) and self._other_size < MAX_STRAY_BYTES:
                self._other_lines.append(line[:MAX_STRAY_BYTES])
                self._other_size += len(line)
        if self._data_size > MAX_EVENT_BYTES:
            raise too_large(MAX_EVENT_BYTES, "an event of the reply")
        return events


# --- Newline-delimited JSON ---

MAX_LINE_BYTES = MAX_REPLY_BYTES
"""The longest line that is accepted, in bytes. A longer line ends the stream with a StreamError."""


class NdjsonDecoder:
    """Decodes bytes to lines. Call `feed` for each piece of the body, and `close` at the end. Both return the
    complete lines.

    A line is an event without a name, so the same code can read lines and server-sent events.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # pieces of the unfinished line, joined at its end
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
