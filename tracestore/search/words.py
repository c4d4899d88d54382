"""Text as words, and a question as terms: the same for both databases. Pure.

A word is letters and digits without accents and in lower case; a character of Chinese, Japanese or Korean is a
word of its own. What is asked for is words that must all be there, ``"a phrase"``, ``begin*``, and ``-not``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from callboard.bus.values.content import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import Message

_OF_ITS_OWN = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
_WORD = re.compile(rf"[{_OF_ITS_OWN}]|[^\W_{_OF_ITS_OWN}]+")
_TERM = re.compile(r'(?P<no>-)?(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')
_LONGEST = 100
"""The number of characters of a word that count. Data such as base64 is no words."""


class Term(NamedTuple):
    """A part of a question: words that follow one another."""

    words: tuple[str, ...]
    """The words."""
    begins: bool = False
    """Whether the last word may go on."""
    absent: bool = False
    """Whether they must not be there."""


def words_of(text: str) -> list[str]:
    """The words of a text."""
    plain = unicodedata.normalize("NFKD", text)
    bare = "".join(sign for sign in plain if not unicodedata.combining(sign))
    composed = unicodedata.normalize("NFC", bare).casefold()  # a Korean syllable is one character again
    return [word[:_LONGEST] for word in _WORD.findall(composed)]


def terms_of(question: str) -> tuple[Term, ...]:
    """The terms of a question. It has none if there is no word in it."""
    return tuple(_terms(question))


def _terms(question: str) -> Iterator[Term]:
    for found in _TERM.finditer(question):
        said = found["phrase"] if found["phrase"] is not None else found["word"]
        words = tuple(words_of(said))
        if words:
            yield Term(words, begins=found["phrase"] is None and said.endswith("*"), absent=bool(found["no"]))


def text_of(message: Message) -> str:
    """All that a message says in words: its text, its thoughts, the arguments and results of tools."""
    parts: list[str] = []
    for block in message.content:
        match block:
            case TextBlock() | ThinkingBlock() | ToolResultBlock():
                parts.append(block.text)
            case ToolUseBlock():
                parts += [block.name, *_texts(block.input)]
            case _:
                pass
    return "\n".join(parts)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case int() | float():
            yield str(value)
        case _:
            pass


def excerpt(text: str, terms: tuple[Term, ...], length: int = 160) -> str:
    """The part of a text around the first word that was asked for, on one line."""
    line = " ".join(text.split())
    wanted = [term.words[0] for term in terms if not term.absent]
    for found in re.finditer(r"\w+", line):
        if any(word.startswith(each) for word in words_of(found[0]) for each in wanted):
            start = max(0, min(found.start() - length // 3, len(line) - length))
            break
    else:
        start = 0
    cut = line[start : start + length]
    return f"{'…' if start else ''}{cut}{'…' if start + length < len(line) else ''}"
