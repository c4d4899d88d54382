"""Normalisers: canonical events from a body of one protocol, piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Mapping
from typing import ClassVar, Protocol

import msgspec

from callboard.bus.errors import AdapterError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json
from callboard.bus.values.content import ImageBlock

from ..http.errors import ErrorType, error_without_status, is_foreign_error, read_error
from ..requests.content import is_remote, read_data_url
from .assembler import Assembler
from .decoders import BodyDecoder, NdjsonDecoder, SseDecoder, SseEvent, repair_body


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
        self._decoder: BodyDecoder
        self._lines = decoder
        self._read_with(decoder)

    @property
    def other_lines(self) -> bytes:
        """The lines outside of events, such as a bare error."""
        return self._lines.other_lines if isinstance(self._lines, SseDecoder) else b""

    def _read_with(self, decoder: BodyDecoder) -> None:
        raw_events = self.assembler.raw
        if self.assembler.relay is not None:
            decoder = self.assembler.relay.forwarding(decoder, self.is_repeated)
        self._decoder = decoder if raw_events is None else raw_events.recording(decoder)

    def is_repeated(self, data: bytes) -> bool:
        """Whether an event was already delivered by an earlier connection."""
        return False

    def pass_on(self, chunk: bytes) -> None:
        """Decode data that arrives after the end of the reply, so that the relay can forward its events."""
        self._decoder.feed(chunk)

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

    def _read(self, events: list[SseEvent]) -> None:
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


def image_of_base64(data: Json, media_type: Json = None) -> ImageBlock | None:
    """Decode an image from base64; None if it is invalid or of an unknown type."""
    if not isinstance(data, str) or not data:
        return None
    try:
        return _image(b64decode(data, validate=True), media_type)
    except ValueError:  # invalid base64 or not ASCII
        return None


def image_at(url: Json) -> ImageBlock | None:
    """The image at a web address or data URL; None for any other address."""
    if not isinstance(url, str):
        return None
    if is_remote(url):
        return ImageBlock(url=url)
    found = read_data_url(url)
    return _image(found[1], found[0]) if found is not None and found[1] else None


def _image(data: bytes, media_type: Json) -> ImageBlock | None:
    named = media_type if isinstance(media_type, str) and media_type.startswith("image/") else None
    try:
        # Detect the type, because some servers label every image as the requested type.
        return ImageBlock(data=data)
    except ValueError:
        return None if named is None else ImageBlock(data=data, media_type=named)
