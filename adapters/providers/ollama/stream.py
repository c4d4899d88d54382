"""The normaliser of a streamed reply: lines of JSON, of which the last one says that it is the last."""

from __future__ import annotations

from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.normaliser import NdjsonNormaliser
from callboard.adapters.usage.rates import TokenRates
from callboard.bus.errors import StreamError

from .response import ReplyReader
from .wire import decode_reply


class ChatNormaliser(NdjsonNormaliser):
    """A body that ends without a last line was cut off, whatever it had said."""

    def __init__(self, assembler: Assembler, rates: TokenRates) -> None:
        super().__init__(assembler)
        self._reader = ReplyReader(assembler, rates)

    def on_event(self, name: bytes, data: bytes) -> None:
        self.finished = self._reader.line(decode_reply(data))

    def on_end(self) -> None:
        raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")
