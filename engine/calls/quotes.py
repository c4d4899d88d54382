"""Quotes of a request in the text of its error, which a trace without content must not keep.

Providers quote what they refuse. The exception that the caller gets has the whole text. What is published, and so
stored, has an ellipsis in the place of each quote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from callboard.adapters import Message, TextBlock, ToolResultBlock, ToolUseBlock

WINDOW = 16
"""The characters of a stretch that is looked for. A quote of this length and half of it more is always found."""

_STEP = WINDOW // 2
_SHORTEST = 4
_MOST_TEXTS = 2_000
_LONGEST_SEARCHED = 400_000
"""The characters that are searched, of one text and of all, so that no failure stops the event loop for long."""


def without_quotes(text: str, said: Iterable[str]) -> str:
    """A text with an ellipsis in place of what it quotes.

    Args:
        text: The text of an error.
        said: The texts of the request.
    """
    left = _LONGEST_SEARCHED
    for source in islice(said, _MOST_TEXTS):
        source = source[:left]
        left -= len(source)
        if _SHORTEST <= len(source) < WINDOW + _STEP:
            text = text.replace(source, "…")
        elif source:
            text = "".join(_unquoted(text, source))
    return text


def texts_of(messages: Iterable[Message], system_prompt: str | None = None) -> Iterator[str]:
    """All that messages say: texts, the arguments of tools and their results."""
    if system_prompt:
        yield system_prompt
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock() | ToolResultBlock():
                    yield block.text
                case ToolUseBlock():
                    yield from (value for value in block.input.values() if isinstance(value, str))
                case _:
                    pass


def _unquoted(text: str, source: str) -> Iterator[str]:
    done = place = 0
    while place + WINDOW <= len(text):
        found = source.find(text[place : place + WINDOW])
        if found < 0:
            place += _STEP
            continue
        start, at = place, found
        while start > done and at and text[start - 1] == source[at - 1]:
            start, at = start - 1, at - 1
        end, at = place + WINDOW, found + WINDOW
        while end < len(text) and at < len(source) and text[end] == source[at]:
            end, at = end + 1, at + 1
        yield f"{text[done:start]}…"
        done = place = end
    yield text[done:]
