"""A stream of generateContent's replies, each of which is the next piece of one reply.

The end of the body is the only mark of the end. Usage, grounding and even text may follow a finish reason. A body
without any finish reason was cut off.
"""

from __future__ import annotations

import msgspec

from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.normaliser import EventNormaliser
from callboard.adapters.replies.sse import SseDecoder
from callboard.bus.errors import StreamError

from .. import wire
from ..errors import CODES
from .response import ReplyReader


class GeminiNormaliser(EventNormaliser):
    """Reads one streamed reply; see the module's text."""

    error_codes = CODES

    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler, SseDecoder())
        self._reader = ReplyReader(assembler)
        self._only_text = True  # of every chunk since the first

    def on_event(self, name: bytes, data: bytes) -> None:
        if self._only_text and self._reader.in_text:
            try:
                self._reader.add_text(wire.decode_text_chunk(data))
                return
            except msgspec.DecodeError:
                self._only_text = False
        try:
            chunk = wire.decode_chunk(data)
        except msgspec.DecodeError:
            if data.strip() == b"[DONE]":
                return  # of another protocol, sent by a proxy
            raise
        self._reader.add(chunk, data)

    def on_end(self) -> None:
        if not self._reader.ended:
            raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")
        self._reader.finish()
        self.finished = True
