"""Content and values as text, for protocols whose messages are plain strings, and for content that is told in
words."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from callboard.bus.values.content import ContentBlock, TextBlock
from callboard.bus.values.json import Json
from callboard.bus.values.messages import Message, Role


def as_text(value: Json) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def join_text(content: Iterable[ContentBlock]) -> str:
    """All text blocks as one text: a blank line between them, unless the text itself goes on there."""
    joined = ""
    for block in content:
        if isinstance(block, TextBlock):
            goes_on = not joined or joined[-1].isspace() or block.text[:1].isspace()
            joined += block.text if goes_on else f"\n\n{block.text}"
    return joined


def current_turn(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the last reply. The model must be able to take them; earlier ones are fitted to it."""
    begin = len(messages)
    while begin and messages[begin - 1].role is not Role.ASSISTANT:
        begin -= 1
    return messages[begin:]
