"""The normaliser of a streamed reply. Each token is an event, and the last event has the whole text."""

from __future__ import annotations

from callboard.adapters.refusals.classify import read_error
from callboard.adapters.replies.normaliser import SseNormaliser

from .errors import classify
from .response import ReplyReader
from .wire import decode_piece


class TokenNormaliser(SseNormaliser):
    """A body that ends before its last event was cut off: there is no other mark of an end."""

    def __init__(self, reader: ReplyReader) -> None:
        super().__init__(reader.assembler)
        self._reader = reader

    def on_event(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            raise classify(read_error(data), None, {}, provider=self.assembler.provider, now_us=0)
        self.finished = self._reader.piece(decode_piece(data))
