"""A JSON string as it grows, wherever its text is cut: inside an escape, or between the halves of a character."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = frozenset("0123456789abcdefABCDEF")

_State: TypeAlias = Callable[[str, int], int]


class JsonString:
    """One string of JSON, from behind its opening quote on.

    `closed` says whether its end was read. `error` is the fault at the place where reading stopped. `grew` says
    whether the last piece of text made the string longer.

    Args:
        lenient: Whether line breaks, other control characters and unknown escapes are read as they were meant.
    """

    def __init__(self, *, lenient: bool) -> None:
        self.closed = False
        self.error: str | None = None
        self.grew = False
        self._lenient = lenient
        self._pieces: list[str] = []
        self._high = ""  # the first half of a surrogate pair, held back until it is known what follows
        self._digits = ""
        self._state: _State = self._plain

    @property
    def text(self) -> str:
        """What has been read of it."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def read(self, text: str, place: int) -> int:
        """Read from a place on, up to the string's end if that is there. Where to go on."""
        self.grew = False
        while place < len(text) and not self.closed and self.error is None:
            place = self._state(text, place)
        return place

    def _plain(self, text: str, place: int) -> int:
        plain = _PLAIN.match(text, place)
        assert plain is not None
        self._add(plain[0])
        place = plain.end()
        if place == len(text):
            return place
        match text[place]:
            case '"':
                self._add_half()
                self.closed = True
            case "\\":
                self._state = self._escape
            case control if self._lenient:
                self._add(control)
            case _:
                return self._fail("a control character stands in a string", place)
        return place + 1

    def _escape(self, text: str, place: int) -> int:
        character = text[place]
        if character == "u":
            self._digits, self._state = "", self._code
        elif character in _ESCAPED or self._lenient:
            self._add(_ESCAPED.get(character, character))
            self._state = self._plain
        else:
            return self._fail(f"there is no escape \\{character}", place)
        return place + 1

    def _code(self, text: str, place: int) -> int:
        """Four hexadecimal digits. Two halves of a surrogate pair become one character. A single half stays as it
        is."""
        if text[place] not in _HEX:
            return self._fail("four hexadecimal digits were expected", place)
        self._digits += text[place]
        if len(self._digits) == 4:
            self._add_code(chr(int(self._digits, 16)))
            self._state = self._plain
        return place + 1

    def _add_code(self, character: str) -> None:
        if self._high and "\udc00" <= character <= "\udfff":
            pair = 0x10000 + ((ord(self._high) - 0xD800) << 10) + (ord(character) - 0xDC00)
            self._high = ""
            self._add(chr(pair))
            return
        self._add_half()
        if "\ud800" <= character <= "\udbff":
            self._high = character
        else:
            self._add(character)

    def _add(self, piece: str) -> None:
        if piece:
            self._add_half()
            self._pieces.append(piece)
            self.grew = True

    def _add_half(self) -> None:
        """What was held back as the first half of a pair was none."""
        if self._high:
            half, self._high = self._high, ""
            self._add(half)

    def _fail(self, what: str, place: int) -> int:
        self.error = what
        return place
