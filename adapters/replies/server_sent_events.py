"""Streamed replies: from the pieces of a body to canonical events.

A decoder cuts a body into server-sent events or lines of JSON (NDJSON). A normaliser reads these events of one
protocol. `fill_usage` completes the usage of a reply without a final event.

Decoders do no I/O and never fail because of content. They follow the WHATWG rules, except where providers break
these rules. The last event counts even if no blank line follows it. Events without data are skipped, except for
errors. A field `error` (llama.cpp) is an event of that name. The data of `event: error` may be a line without a
field name, or missing. A field `data` may lack its colon. Lines end in LF, CRLF or CR only: U+2028 may occur
inside JSON text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from callboard.bus.errors import AdapterError, StreamError, WarningCode
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import TokenUsage, UsageSource

from ..http.errors import ErrorType, error_without_status, is_foreign_error, read_error
from ..requests.content import repair_body
from ..requests.estimate import TokenRates, estimate_request, estimate_tokens
from ..transport.transport import MAX_REPLY_BYTES, too_large
from .assembler import Assembler

# --- Server-sent events ---

MAX_EVENT_BYTES = MAX_REPLY_BYTES
"""The largest event or line that is accepted, in bytes. A larger one ends the stream with a StreamError."""

MAX_STRAY_BYTES = 64 * 1024
"""The maximum number of bytes that are kept of lines outside of events."""

SseEvent: TypeAlias = tuple[bytes, bytes]
"""The `event:` field (empty if missing), and the `data:` lines, joined by a line feed."""


class BodyDecoder(Protocol):
    """Cuts a body into events. `feed` and `close` return the complete ones."""

    def feed(self, chunk: bytes) -> list[SseEvent]: ...
    def close(self) -> list[SseEvent]: ...


class _Lines:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # pieces of the unfinished line, joined at its end
        self._size = 0
        self._at_start = True

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > MAX_EVENT_BYTES:
                raise too_large(MAX_EVENT_BYTES, "a line of the reply")


class SseDecoder(_Lines):
    """Decodes bytes to server-sent events."""

    def __init__(self) -> None:
        super().__init__()
        self._after_cr = False
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


class NdjsonDecoder(_Lines):
    """Decodes bytes to lines. A line is an event without a name, so normalisers need not distinguish them."""

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


# --- Normalisers ---


class StreamNormaliser(Protocol):
    """Reads a body as it arrives. Its methods never raise. After a failure, they return the earlier events and set
    `error`.
    """

    error: AdapterError | None
    finished: bool
    """Whether the protocol's end has arrived. The assembler is then complete, and later data is ignored."""

    def feed(self, chunk: bytes) -> list[StreamEvent]: ...

    def close(self) -> list[StreamEvent]:
        """End the body. If the protocol's end is missing, `error` is set."""
        ...


class EventNormaliser(ABC):
    """Base of the normalisers: a decoder cuts the body into events, and subclasses interpret them."""

    error_codes: Mapping[str, ErrorType] = {}
    """The provider's error words, as exceptions."""
    server_sent: ClassVar[bool] = True
    """Whether the events are server-sent events. Otherwise each is a line."""

    def __init__(self, assembler: Assembler, decoder: BodyDecoder) -> None:
        self.assembler = assembler
        self.error: AdapterError | None = None
        self.finished = False
        self._decoder = decoder
        self._shared = assembler.raw is not None or assembler.relay is not None

    @property
    def other_lines(self) -> bytes:
        """The lines outside of events, such as a bare error."""
        return self._decoder.other_lines if isinstance(self._decoder, SseDecoder) else b""

    def is_repeated(self, data: bytes) -> bool:
        """Whether an event was already delivered by an earlier connection."""
        return False

    def pass_on(self, chunk: bytes) -> None:
        """Forward the events that arrive after the end of the reply."""
        self._share(self._decoder.feed(chunk))

    @abstractmethod
    def on_event(self, name: bytes, data: bytes) -> None:
        """Handle one event. May raise AdapterError or msgspec's decoding errors."""

    def on_end(self) -> None:
        """Handle the end of a body before `finished`: finish the reply if the protocol allows it, or raise."""
        raise StreamError("the stream ended before the reply was complete")

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        if not self.finished and self.error is None:
            try:
                self._read(self._decoder.feed(chunk))
            except (AdapterError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                self.error = _failure(error)
        return self.assembler.take()

    def close(self) -> list[StreamEvent]:
        if not self.finished and self.error is None:
            try:
                self._read(self._decoder.close())
                if not self.finished:
                    self.on_end()
            except (AdapterError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                self.error = _failure(error)
        return self.assembler.take()

    def _share(self, events: list[SseEvent]) -> None:
        """Give the events to the raw reply, and to a client that uses the same protocol."""
        raw, relay = self.assembler.raw, self.assembler.relay
        for event in events:
            if self.is_repeated(event[1]):
                continue
            if raw is not None and event[1] != b"[DONE]":  # even a complete reply may lack `[DONE]`
                raw.event(event[1])
            if relay is not None:
                relay.event(event)

    def _read(self, events: list[SseEvent]) -> None:
        if self._shared:
            self._share(events)
        for name, data in events:
            if name == b"error" and is_foreign_error(data):
                raise error_without_status(read_error(data), self.error_codes, self.assembler.provider)
            try:
                self.on_event(name, data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                repaired = repair_body(data)
                if repaired is None:
                    raise
                self.on_event(name, repaired.text)
                self.assembler.replaced(repaired.replaced)
            if self.finished:
                return


class SseNormaliser(EventNormaliser):
    """Base of the normalisers for server-sent events."""

    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler, SseDecoder())


class NdjsonNormaliser(EventNormaliser):
    """Base of normalisers for bodies with one JSON value a line. Their events have no names."""

    server_sent = False

    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler, NdjsonDecoder())


def reads_server_sent_events(normaliser: StreamNormaliser) -> bool:
    return isinstance(normaliser, EventNormaliser) and normaliser.server_sent


def _failure(error: Exception) -> AdapterError:
    if isinstance(error, AdapterError):
        return error
    return StreamError(f"the provider sent an event outside its protocol: {error}")


# --- Usage without a final event ---


def fill_usage(
    assembler: Assembler, prompt: int | None, generated: int | None, rates: TokenRates, raw: bytes
) -> TokenUsage | None:
    """The usage of a reply without its final event; None if unknown. If it is estimated, a warning is added."""
    request = assembler.request
    if (prompt is None and generated is None) or (prompt is None and request is None):
        return None
    output = assembler.partial_text()
    is_complete = prompt is not None and (generated is not None or not output)
    if not is_complete:
        assembler.warn(
            WarningCode.USAGE_ESTIMATED,
            f"{assembler.provider} reported only a part of the usage. The rest is an estimate",
        )
    if prompt is None:
        assert request is not None
        prompt = estimate_request(request.messages, request.tools, request.system_prompt, rates)
    return TokenUsage(
        input_tokens=prompt,
        output_tokens=generated if generated is not None else estimate_tokens(output, rates),
        source=UsageSource.REPORTED if is_complete else UsageSource.ESTIMATED,
        raw=msgspec.Raw(raw),
    )
