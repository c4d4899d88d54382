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
    """What each trait of a text comes to in tokens; the fields are in the order of what `traits` gives.

    lower, upper, digit, mark, space: an ASCII character of that kind. joint: one of ``._-/(``, which tokenizers
    join to the word behind it; a mark is any other. line: a line break, or a tab. triple: three digits in a row.
    word, capital_word: a word behind a space. glued_word, glued_capital: a word behind a mark. camel: a capital
    behind a small letter. capitalised: a capital with three small letters behind it. capital_pair: two capitals.
    digit_after: a digit behind a letter. letter_after: a letter behind a digit. number: a number behind anything
    else. mark_pair, mark_run: two marks, and eight of a kind. space_pair: two spaces. indent: a line that begins
    with a space. long_word: eight small letters in a row.
    foreign: a small word of another language in Latin letters, whose longer words are less common than English
    ones; looked for where anything is beyond ASCII.

    The rest is one character of a script. latin: of western Europe, beyond ASCII. far_latin: of the rest of the
    Latin script. stacked: a letter with two accents, as in Vietnamese, and scripts without a trait of their own.
    hindi: also other scripts of India. sign: an arrow, a bullet, a typographic mark. kana: also the marks of
    Chinese and Japanese. wide_mark: a mark as wide as these.
    """

    lower: float = 0.03
    upper: float = 0.2
    digit: float = 0.2
    triple: float = 0.4
    joint: float = 0.8
    mark: float = 0.6
    space: float = 0.05
    line: float = 0.7
    word: float = 0.8
    capital_word: float = 0.8
    glued_word: float = 0.8
    glued_capital: float = 0.8
    camel: float = 0.8
    capitalised: float = 0.0
    capital_pair: float = -0.2
    digit_after: float = 0.8
    letter_after: float = 0.3
    number: float = 0.6
    mark_pair: float = -0.5
    mark_run: float = -0.5
    space_pair: float = -0.05
    indent: float = 0.5
    long_word: float = 1.5
    foreign: float = 3.0
    latin: float = 0.6
    far_latin: float = 1.5
    stacked: float = 1.0
    greek: float = 0.6
    cyrillic: float = 0.35
    hebrew: float = 0.7
    arabic: float = 0.5
    hindi: float = 0.6
    thai: float = 0.6
    sign: float = 1.5
    kana: float = 0.8
    han: float = 0.8
    wide_mark: float = 1.0
    hangul: float = 0.8
    emoji: float = 1.8


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
    """How often each trait of TextRates is found; of a long text, about."""
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
    """Characters of each script, by the first byte of each; where scripts share it, by the second."""
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
