"""What is lost of a request's history while it is fitted."""

from __future__ import annotations

import msgspec

from callboard.bus.values.content import ContentBlock, TextBlock
from callboard.bus.values.messages import Message

from ..fitted import Loss, block_type
from ..surrogates import mend_text


class Losses:
    """The losses of one request, in the order in which they are found.

    Args:
        session_id: The request's session.
        provider: The target's name.
    """

    def __init__(self, session_id: str, provider: str) -> None:
        self.found: list[Loss] = []
        self._session_id = session_id
        self._provider = provider

    def note(self, message: Message, block: ContentBlock, reason: str) -> None:
        """Note that a block of a message is left out or changed."""
        kind = block_type(block)
        self.found.append(Loss(self._session_id, message.id or "", kind, self._provider, reason, block))

    def mended(self, message: Message, block: ContentBlock, text: str) -> str:
        """A block's text without half surrogate pairs, which is a loss if it had one."""
        mended = mend_text(text)
        if mended is not text:
            self.note(message, block, "half a surrogate pair in its text was replaced")
        return mended

    def mended_block(self, message: Message, block: TextBlock) -> TextBlock:
        text = self.mended(message, block, block.text)
        return block if text is block.text else msgspec.structs.replace(block, text=text)
