"""A reader for JSON text that arrives in pieces. It has a value before the text is complete.

The reader is a push-down automaton. The text may be cut at any place, and no text is read twice. A string, an
object or an array is part of the value once it has started. A number, a literal or a member's name becomes part of
the value when it is complete, because a piece of it has another meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from callboard.bus.values.base import Json, JsonObject

# --- A growing string ---

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = frozenset("0123456789abcdefABCDEF")

_StringState: TypeAlias = Callable[[str, int], int]


class JsonString:
    """A JSON string, read after its opening quote.

    `closed` is True once its end was read. `error` describes the problem at which reading stopped. `grew` is True
    if the last piece made the string longer.

    Args:
        lenient: Whether line breaks, other control characters and unknown escapes are accepted.
    """

    def __init__(self, *, lenient: bool) -> None:
        self.closed = False
        self.error: str | None = None
        self.grew = False
        self._lenient = lenient
        self._pieces: list[str] = []
        self._high = ""  # the first half of a surrogate pair, held until the next character
        self._digits = ""
        self._state: _StringState = self._plain

    @property
    def text(self) -> str:
        """The text that has been read."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def take(self) -> str:
        """Return the text since the last call of `take`, and remove it from `text`."""
        joined = "".join(self._pieces)
        self._pieces = []
        return joined

    def read(self, text: str, place: int) -> int:
        """Read from a position to the string's end, if it has arrived. Return the position at which to
        continue.
        """
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
                return self._fail("a string has a control character", place)
        return place + 1

    def _escape(self, text: str, place: int) -> int:
        character = text[place]
        if character == "u":
            self._digits, self._state = "", self._code
        elif character in _ESCAPED or self._lenient:
            self._add(_ESCAPED.get(character, character))
            self._state = self._plain
        else:
            return self._fail(f"invalid escape \\{character}", place)
        return place + 1

    def _code(self, text: str, place: int) -> int:
        """Read four hexadecimal digits. Two halves of a surrogate pair become one character. A single half is
        kept.
        """
        if text[place] not in _HEX:
            return self._fail("expected four hexadecimal digits", place)
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
        """Add the held first half of a pair, because no second half followed."""
        if self._high:
            half, self._high = self._high, ""
            self._add(half)

    def _fail(self, what: str, place: int) -> int:
        self.error = what
        return place


_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r"[-+.0-9A-Za-z]*")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_SCALAR_STARTS = frozenset("-0123456789tfn")
_LITERALS: dict[str, Json] = {"true": True, "false": False, "null": None}

_State: TypeAlias = Callable[[str, int], int]
"""Continues to read at a position in a piece of text, and returns the position for the next state."""


class PartialJson:
    """An incremental JSON reader: `feed(text)` reads a piece, `value` is the value so far.

    `started` is True once there is a value, and `complete` once it is complete. `error` describes a problem in the
    text, with its position. Then `value` is the value before the problem.

    Args:
        embedded: Whether other text or a code fence may surround the value, an object or an array. The text around
            it is ignored.
        opening: The characters with which the value may start.
        lenient: Whether extra commas, line breaks in strings and unknown escapes are accepted. Then `close()`
            closes everything that is open.
    """

    def __init__(self, *, embedded: bool = False, opening: str = "{[", lenient: bool = False) -> None:
        self.started = False
        self.complete = False
        self.error: str | None = None
        self._embedded = embedded
        self._opening = opening
        self._lenient = lenient
        self._root: Json = None
        self._stack: list[JsonObject | list[Json]] = []
        self._names: list[str] = []  # the name of the open member in each object on the stack
        self._string: JsonString | None = None  # the open string
        self._is_name = False  # whether the open string is a member's name
        self._token = ""  # an open number or literal
        self._before = 0  # the number of characters in earlier pieces
        self._grew = False
        self._state: _State = self._seek if embedded else self._begin_value

    @property
    def in_string(self) -> bool:
        """Whether the text ends within a string."""
        return self._string is not None

    @property
    def value(self) -> Json:
        """A snapshot of the current value; None before `started`. The time for a snapshot depends only on the
        parts that are still open.

        Snapshots share their complete parts, so don't change them.
        """
        open_text = self._string.text if self._string is not None and not self._is_name else None
        if not self._stack:
            return self._root if open_text is None else open_text
        inner: Json = open_text
        names = len(self._names)
        for depth, container in enumerate(reversed(self._stack)):
            has_child = depth > 0 or open_text is not None
            if isinstance(container, list):
                copied_list = list(container)
                if has_child:
                    copied_list[len(copied_list) - (depth > 0) :] = [inner]
                inner = copied_list
            else:
                names -= 1
                copied = dict(container)
                if has_child:
                    copied[self._names[names]] = inner
                inner = copied
        return inner

    def feed(self, text: str) -> bool:
        """Read the next piece. Returns whether the value has grown."""
        self._grew = False
        place, end = 0, len(text)
        while place < end and self.error is None:
            place = self._state(text, place)
        self._before += end
        return self._grew

    def close(self, *, cut_off: bool = False) -> bool:
        """Finish reading. If the text is incomplete, this sets `error`. A lenient reader closes the open parts
        instead.
        """
        self._grew = False
        at_root = not self._stack
        if self._is_open() and self._state == self._scalar and (at_root or (self._lenient and not cut_off)):
            self._end_scalar(0)
        if self._is_open() and self._lenient and self.started:
            self._close_all()
        if self._is_open():
            self._end_with(
                "the text ends before the end of the value" if self.started else "the text has no JSON", 0
            )
        return self._grew

    def _is_open(self) -> bool:
        return self.error is None and not self.complete

    def _close_all(self) -> None:
        self._root, self._stack, self._names, self._string = self.value, [], [], None
        self.complete, self._state = True, self._after

    # --- States of the reader ---

    def _seek(self, text: str, place: int) -> int:
        """Skip the text before the value."""
        found = [at for mark in self._opening if (at := text.find(mark, place)) >= 0]
        if not found:
            return len(text)
        self._state = self._begin_value
        return min(found)

    def _begin_value(self, text: str, place: int) -> int:
        place = _after_space(text, place)
        if place == len(text):
            return place
        match text[place]:
            case "{":
                self._open({})
                self._state = self._first_name
            case "[":
                self._open([])
                self._state = self._first_item
            case '"':
                self._begin_string(is_name=False)
            case character if character in _SCALAR_STARTS:
                self._token = ""
                self._state = self._scalar
                return place
            case _:
                return self._fail("expected a value", place)
        return place + 1

    def _first_item(self, text: str, place: int) -> int:
        return self._end_or(self._begin_value, "]", text, place)

    def _next_item(self, text: str, place: int) -> int:
        return (
            self._end_or(self._begin_value, "]", text, place) if self._lenient else self._begin_value(text, place)
        )

    def _first_name(self, text: str, place: int) -> int:
        return self._end_or(self._begin_name, "}", text, place)

    def _next_name(self, text: str, place: int) -> int:
        return self._end_or(self._begin_name, "}", text, place) if self._lenient else self._begin_name(text, place)

    def _end_or(self, otherwise: _State, end: str, text: str, place: int) -> int:
        place = _after_space(text, place)
        if place < len(text) and text[place] == end:
            self._pop()
            return place + 1
        return otherwise(text, place)

    def _begin_name(self, text: str, place: int) -> int:
        place = _after_space(text, place)
        if place == len(text):
            return place
        if text[place] != '"':
            return self._fail("expected a name in double quotes", place)
        self._begin_string(is_name=True)
        return place + 1

    def _colon(self, text: str, place: int) -> int:
        place = _after_space(text, place)
        if place == len(text):
            return place
        if text[place] != ":":
            return self._fail("expected a colon", place)
        self._state = self._begin_value
        return place + 1

    def _comma(self, text: str, place: int) -> int:
        """Continue after a member or an item."""
        place = _after_space(text, place)
        if place == len(text):
            return place
        in_list = isinstance(self._stack[-1], list)
        if text[place] == ",":
            self._state = self._next_item if in_list else self._next_name
        elif text[place] == ("]" if in_list else "}"):
            self._pop()
        else:
            return self._fail("expected a comma or the end", place)
        return place + 1

    def _after(self, text: str, place: int) -> int:
        if not self._embedded and not self._lenient:
            place = _after_space(text, place)
            if place < len(text):
                return self._fail("the value is followed by text", place)
        return len(text)

    def _begin_string(self, *, is_name: bool) -> None:
        self._string, self._is_name = JsonString(lenient=self._lenient), is_name
        self._state = self._in_string
        if not is_name:
            self.started = self._grew = True

    def _in_string(self, text: str, place: int) -> int:
        string = self._string
        assert string is not None
        place = string.read(text, place)
        if string.error is not None:
            return self._fail(string.error, place)
        if string.grew and not self._is_name:
            self._grew = True
        if string.closed:
            self._end_string(string.text)
        return place

    def _end_string(self, text: str) -> None:
        self._string = None
        if self._is_name:
            self._names[-1], self._state = text, self._colon
        else:
            grew = self._grew
            self._place(text)
            self._grew = grew  # no part of it is new

    def _scalar(self, text: str, place: int) -> int:
        part = _TOKEN.match(text, place)
        assert part is not None
        self._token += part[0]
        if part.end() < len(text):
            self._end_scalar(part.end())
        return part.end()

    def _end_scalar(self, place: int) -> None:
        token = self._token
        try:
            if token in _LITERALS:
                self._place(_LITERALS[token])
            elif _INTEGER.match(token):
                self._place(int(token))
            elif _FLOAT.match(token):
                self._place(float(token))
            else:
                self._fail(f"{token[:20]!r} is neither a number nor true, false or null", place)
        except ValueError as error:  # more digits than Python accepts
            self._fail(str(error), place)

    # --- The tree ---

    def _open(self, container: JsonObject | list[Json]) -> None:
        self._put(container)
        self._stack.append(container)
        if isinstance(container, dict):
            self._names.append("")

    def _pop(self) -> None:
        if isinstance(self._stack.pop(), dict):
            self._names.pop()
        self._state = self._comma if self._stack else self._after
        self.complete = not self._stack

    def _place(self, value: Json) -> None:
        self._put(value)
        self._state = self._comma if self._stack else self._after
        self.complete = not self._stack

    def _put(self, value: Json) -> None:
        self.started = self._grew = True
        if not self._stack:
            self._root = value
        elif isinstance(holder := self._stack[-1], list):
            holder.append(value)
        else:
            holder[self._names[-1]] = value

    def _fail(self, what: str, place: int) -> int:
        if self._embedded and self._is_only_bracket():
            self._stack, self._names, self._string, self._root, self.started = [], [], None, None, False
            self._state = self._seek
        else:
            self._end_with(what, place)
        return place

    def _is_only_bracket(self) -> bool:
        """Whether the value that was started is only a bracket in the text before the real value."""
        return (
            len(self._stack) == 1 and not self._stack[0] and self._names in ([], [""]) and not self._is_in_value()
        )

    def _is_in_value(self) -> bool:
        return self._string is not None and not self._is_name

    def _end_with(self, what: str, place: int) -> None:
        self.complete = False
        self.error = f"{what}, at character {self._before + place}"


def _after_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    assert space is not None
    return space.end()
