"""Prints untrusted text without characters that could control a terminal or reverse a line.

Names, tags, errors, file names and replies are untrusted. Control characters other than line feed and tab are left
out. Invisible characters that change the direction of text, break lines or hide text are also left out. Joiners
that scripts and emoji need are kept. Halves of surrogate pairs, which no terminal can show, become U+FFFD.
"""

from __future__ import annotations

import sys

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE = (
    *(0x200B, 0x2028, 0x2029, 0xFEFF),
    *(*range(0x206A, 0x2070), *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)),
)
_SURROGATES = range(0xD800, 0xE000)

_LEFT_OUT: dict[int, str | None] = dict.fromkeys((*_CONTROLS, *_DIRECTIONS, *_INVISIBLE))
del _LEFT_OUT[0x09], _LEFT_OUT[0x0A]


def _json_escape(code: int) -> str:
    units = chr(code).encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


_HARMLESS = _LEFT_OUT | dict.fromkeys(_SURROGATES, "\ufffd")
_ON_ONE_LINE = _HARMLESS | {0x09: " ", 0x0A: " "}
_ESCAPED = {code: _json_escape(code) for code in _LEFT_OUT if code >= 0x7F}


def sanitize(text: str) -> str:
    """Remove the characters that are unsafe at a terminal. Line breaks and tabs are kept."""
    return text.translate(_HARMLESS)


def one_line(text: str) -> str:
    return text.translate(_ON_ONE_LINE)


def sanitize_json(text: str) -> str:
    """Escape the characters in JSON that `sanitize` removes."""
    return text.translate(_ESCAPED)


def echo(text: str = "") -> None:
    """Write one line to stdout."""
    print(one_line(text), flush=True)


def note(text: str = "") -> None:
    """Write one line to stderr, separate from the command's output."""
    print(one_line(text), file=sys.stderr, flush=True)


def write_json(text: str) -> None:
    """Write JSON to stdout, and end its line."""
    sys.stdout.write(sanitize_json(text) + "\n")
