"""The normaliser of a streamed reply: chunks of the reply, and `[DONE]` at the end."""

from __future__ import annotations

import msgspec

from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.normaliser import SseNormaliser
from callboard.bus.errors import StreamError

from ..errors import ERROR_CODES, error_in_body
from ..quirks.servers import Quirks
from .response import ReplyReader
from .wire import decode_reply, decode_text_chunk


class ChatNormaliser(SseNormaliser):
    """Reads on after the finish reason, because usage may follow, until `[DONE]` or the end of the body.

    The end of the body is as good as `[DONE]`. Neither is as good as a finish reason, without which the reply
    broke off; but for `[DONE]` of servers that never give a reason.
    """

    error_codes = ERROR_CODES

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler)
        self._reader = ReplyReader(assembler, quirks)
        self._reasons = quirks.finish_reasons
        self._only_text = True  # of every chunk since the first text

    def on_event(self, name: bytes, data: bytes) -> None:
        if self._only_text and not name and self._reader.amid_text:
            try:
                self._reader.text_chunk(decode_text_chunk(data))
                return
            except msgspec.DecodeError:
                self._only_text = False
        if data.startswith(b"[DONE]") or data.strip() == b"[DONE]":
            self._done()
            return
        if name == b"error":
            raise error_in_body(data, self.assembler.provider)
        reply = decode_reply(data)
        if reply.object == "error" and not reply.choices:
            raise error_in_body(data, self.assembler.provider)
        self._reader.chunk(reply, data)

    def on_end(self) -> None:
        if not self._reader.finish_reason:
            raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")
        self._finish()

    def _done(self) -> None:
        if not self._reader.saw_choice:
            raise StreamError(f"{self.assembler.provider}: the stream held no reply")
        if self._reasons and not self._reader.finish_reason:
            raise StreamError(f"{self.assembler.provider}: the stream ended without saying why the reply did")
        self._finish()

    def _finish(self) -> None:
        self._reader.complete()
        self.finished = True
