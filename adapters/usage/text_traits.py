"""What a text is made of, as far as tokenizers care: letters, digits and marks, where words begin, and scripts.

A tokenizer cuts a text where its characters change their kind, and knows a piece the better the commoner it is. So
this counts the characters of each kind, the changes from one kind to another, and the characters of each script.
Every count is one call into C over the text's bytes, and a long text is known by samples.
"""

from __future__ import annotations

import re
import string

import msgspec


class TextRates(msgspec.Struct, frozen=True, array_like=True):
    """The tokens for each trait of a text. The fields are in the order of the numbers that `traits` gives.

    The fields up to `foreign` are traits of text in Latin letters. The others are the tokens of one character of a
    script.
    """

    lower: float = 0.03
    """A small ASCII letter."""
    upper: float = 0.2
    """A capital ASCII letter."""
    digit: float = 0.2
    """An ASCII digit."""
    triple: float = 0.4
    """Three digits in a row."""
    joint: float = 0.8
    """One of ``._-/(``, which tokenizers join to the word behind it."""
    mark: float = 0.6
    """Any other ASCII mark."""
    space: float = 0.05
    """A space."""
    line: float = 0.7
    """A line break, or a tab."""
    word: float = 0.8
    """A word behind a space."""
    capital_word: float = 0.8
    """A word with a capital behind a space."""
    glued_word: float = 0.8
    """A word behind a mark."""
    glued_capital: float = 0.8
    """A word with a capital behind a mark."""
    camel: float = 0.8
    """A capital behind a small letter."""
    capitalised: float = 0.0
    """A capital with three small letters behind it."""
    capital_pair: float = -0.2
    """Two capitals in a row."""
    digit_after: float = 0.8
    """A digit behind a letter."""
    letter_after: float = 0.3
    """A letter behind a digit."""
    number: float = 0.6
    """A number behind anything else."""
    mark_pair: float = -0.5
    """Two marks in a row."""
    mark_run: float = -0.5
    """Eight marks of one kind in a row."""
    space_pair: float = -0.05
    """Two spaces in a row."""
    indent: float = 0.5
    """A line that begins with a space."""
    long_word: float = 1.5
    """Eight small letters in a row."""
    foreign: float = 3.0
    """A small word of another language in Latin letters, whose longer words are less common than English ones. It
    is looked for only in texts with characters beyond ASCII."""
    latin: float = 0.6
    """A character of western Europe beyond ASCII."""
    far_latin: float = 1.5
    """A character of the rest of the Latin script."""
    stacked: float = 1.0
    """A letter with two accents, as in Vietnamese, or a character of a script without a field of its own."""
    greek: float = 0.6
    """A Greek character."""
    cyrillic: float = 0.35
    """A Cyrillic character."""
    hebrew: float = 0.7
    """A Hebrew character."""
    arabic: float = 0.5
    """An Arabic character."""
    hindi: float = 0.6
    """A character of a script of India."""
    thai: float = 0.6
    """A Thai character."""
    sign: float = 1.5
    """An arrow, a bullet or a typographic mark."""
    kana: float = 0.8
    """A Japanese kana, or a mark of Chinese or Japanese."""
    han: float = 0.8
    """A Chinese character."""
    wide_mark: float = 1.0
    """A mark as wide as a Chinese character."""
    hangul: float = 0.8
    """A Korean syllable."""
    emoji: float = 1.8
    """An emoji."""


_SAMPLED = 2048
_STRIPS = 16
_STRIP = _SAMPLED // _STRIPS

_JOINTS = "._-/("
_AFTER_ASCII = bytes(range(0x80, 0xC0))
"""The bytes of a character behind its first."""
_BEFORE_SCRIPTS = bytes(range(0xC0))
_SCRIPTS = tuple(
    bytes(byte for first, last in blocks for byte in range(first, last + 1))
    for blocks in (
        [(0xC0, 0xC3)], [(0xC4, 0xCB)], [(0xE1, 0xE1)], [(0xCC, 0xCF)], [(0xD0, 0xD3)], [(0xD4, 0xD7)],
        [(0xD8, 0xDF)], [(0xE0, 0xE0)], [], [(0xE2, 0xE2)], [(0xE3, 0xE3)], [(0xE4, 0xE9)], [(0xEF, 0xEF)],
        [(0xEA, 0xEE)], [(0xF0, 0xFF)],
    )
)  # fmt: skip
"""The first bytes of each script's characters, in the order of the fields from `latin` on."""
_HINDI, _THAI, _WIDE_MARK, _EMOJI = 7, 8, 12, 14
_BEYOND_ASCII = [0.0] * (1 + len(_SCRIPTS))


def _kind(byte: int) -> str:
    char = chr(byte)
    if byte >= 0x80:
        return "w"
    if char in string.ascii_lowercase:
        return "a"
    if char in string.ascii_uppercase:
        return "A"
    if char in string.digits:
        return "0"
    if char in _JOINTS:
        return "_"
    return " " if char == " " else "n" if char.isspace() else "."


_SMALL_WORDS = (
    "de der del dem des di die da das du un una une und la las le les el los il en et que che qui ein eine einen "
    "ist zu von mit auf para por con pour dans een het van och og att na nie za ve bir bu est son non pas"
)
_FOREIGN = re.compile(f" (?:{'|'.join(_SMALL_WORDS.split())})(?= )".encode())
_KINDS = "".join(map(_kind, range(256))).encode()
"""The kind of every byte: a, A, 0, a joint, a mark, a space, n for a new line, and w for the first of another."""


def traits(text: str) -> list[float]:
    """The number of times that each trait of TextRates occurs. For a long text it is an approximation."""
    if len(text) <= _SAMPLED:
        return _count(text)
    strips = [
        text[at : at + _STRIP] for at in range(0, len(text) - _STRIP + 1, (len(text) - _STRIP) // (_STRIPS - 1))
    ]
    sample = "".join(strips)
    scale = len(text) / len(sample)
    return [number * scale for number in _count(sample)]


def _count(text: str) -> list[float]:
    data = text.encode("utf-8", "replace")
    # a text begins as if behind a space, so that its first word counts
    of = (b" " + data).translate(_KINDS, _AFTER_ASCII).count
    ascii_traits: list[float] = [
        of(b"a"), of(b"A"), of(b"0"), of(b"000"), of(b"_"), of(b"."), of(b" "), of(b"n"),
        of(b" a"), of(b" A"), of(b".a"), of(b".A"), of(b"aA"), of(b"Aaaa"), of(b"AA"),
        of(b"a0") + of(b"A0"), of(b"0a") + of(b"0A"), of(b".0") + of(b" 0") + of(b"_0"),
        of(b"..") + of(b"__") + of(b"._") + of(b"_."), of(b"........") + of(b"________"),
        of(b"  "), of(b"n "), of(b"aaaaaaaa"),
    ]  # fmt: skip
    if text.isascii():
        return ascii_traits + _BEYOND_ASCII
    return [*ascii_traits, len(_FOREIGN.findall(data)), *_scripts(data)]


def _scripts(data: bytes) -> list[float]:
    """The number of characters of each script, by their first bytes, or by their second bytes where scripts share
    the first."""
    firsts = data.translate(None, _BEFORE_SCRIPTS)
    size = len(firsts)
    found: list[float] = [size - len(firsts.translate(None, script)) for script in _SCRIPTS]
    thai = data.count(b"\xe0\xb8") + data.count(b"\xe0\xb9")
    dressed = data.count(b"\xef\xb8\x8f")  # asks for an emoji where there is a plain sign, too
    found[_HINDI] -= thai
    found[_THAI] = thai
    found[_WIDE_MARK] -= dressed
    found[_EMOJI] += dressed
    return found
