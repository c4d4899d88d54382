"""Windows, by which a text that comes in fragments is cut into pieces. Pure.

The pieces depend on the text alone, and not on its fragments: where one ends is decided as soon as the characters
are there that decide it, and no later character changes that.
"""

from __future__ import annotations

import re
from typing import Literal, Self, TypeAlias

import msgspec

Unit: TypeAlias = Literal["characters", "words", "sentences", "block"]

MOST_CHARACTERS = 4000
"""The length of a piece of words or sentences at which it is cut, because no end of one comes."""

_WORD = re.compile(r"\S+\s")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]{0,8}\s|[。！？｡][\"'”’」』）]{0,8}(?=.)|\n", re.DOTALL)
_LONGEST_END = 10
"""The most characters of an end of a sentence, with the character behind it that shows that it is one."""


class Window(msgspec.Struct, frozen=True):
    """How much of a text is held back until it is looked at. Made by one of its functions.

    Raises:
        ValueError: It holds nothing, or its overlap is below zero.
    """

    unit: Unit
    """The unit that is counted."""
    size: int = 1
    """The number of units in a piece."""
    overlap: int = 0
    """The characters at the end of a piece that are held back and looked at again with the next piece."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.overlap < 0:
            raise ValueError("a window holds at least one unit, and its overlap is no less than 0 characters")

    @classmethod
    def characters(cls, size: int, *, overlap: int = 0) -> Self:
        """Pieces of so many characters.

        Args:
            size: The new characters of each piece.
            overlap: The characters that are looked at again with the next piece. What is looked for is seen whole,
                wherever it stands, if it is at most one character longer.
        """
        return cls("characters", size, overlap)

    @classmethod
    def words(cls, size: int, *, overlap: int = 0) -> Self:
        """Pieces of so many words, each with the white space behind it.

        Args:
            size: The words of each piece.
            overlap: The characters that are looked at again with the next piece.
        """
        return cls("words", size, overlap)

    @classmethod
    def sentences(cls, size: int = 1, *, overlap: int = 0) -> Self:
        """Pieces of so many sentences.

        A full stop, a question mark or an exclamation mark before white space ends one, and so does a line's end.

        Args:
            size: The sentences of each piece.
            overlap: The characters that are looked at again with the next piece.
        """
        return cls("sentences", size, overlap)

    @classmethod
    def block(cls) -> Self:
        """The whole text of a block: nothing passes before the block is over."""
        return cls("block")


class TextWindow:
    """Cuts one text into pieces.

    Args:
        window: The window.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._held = ""
        self._scanned = 0  # so much of it has been searched for ends
        self._counted = 0  # units that have ended in it
        self._last_end = 0  # of those units

    def feed(self, text: str) -> list[str]:
        """The pieces that are complete with this fragment."""
        self._held += text
        pieces: list[str] = []
        while (end := self._end()) is not None:
            pieces.append(self._held[:end])
            self._held = self._held[end:]
            self._scanned = self._counted = self._last_end = 0
        return pieces

    def rest(self) -> str:
        """What is held and no complete piece. The text is over."""
        rest, self._held = self._held, ""
        return rest

    def _end(self) -> int | None:
        """Where the first piece of what is held ends; None if its end hasn't come."""
        window, held = self._window, self._held
        if window.unit == "block":
            return None
        if window.unit == "characters":
            return window.size if len(held) >= window.size else None
        end = self._end_of_units(_WORD if window.unit == "words" else _SENTENCE)
        if end is None and len(held) < MOST_CHARACTERS:
            return None
        return min(end or MOST_CHARACTERS, MOST_CHARACTERS)

    def _end_of_units(self, ends: re.Pattern[str]) -> int | None:
        start = max(self._last_end, self._scanned - _LONGEST_END)
        for match in ends.finditer(self._held, start):
            self._counted += 1
            self._last_end = match.end()
            if self._counted == self._window.size:
                return self._last_end
        self._scanned = len(self._held)
        return None
