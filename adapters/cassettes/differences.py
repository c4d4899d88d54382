"""In what two JSON values differ, in words for somebody who looks for the reason, and by how much."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from callboard.bus.values.json import Json


class Difference(msgspec.Struct):
    """A difference between two JSON values."""

    text: str
    """The difference in words."""
    size: int
    """The number of characters that differ, roughly. So a message too many weighs more than a changed word."""


def differences(recorded: Json, sent: Json, where: str = "") -> Iterator[Difference]:
    """What was changed, added and left out.

    Args:
        recorded: The value that was recorded.
        sent: The value that is sent.
        where: The place of the two in the whole, for the texts.
    """
    if isinstance(recorded, dict) and isinstance(sent, dict):
        for name in sorted({*recorded, *sent}):
            place = f"{where}.{name}" if where else name
            if name not in sent:
                text = f"{place} was recorded ({_short(recorded[name])}) and is not sent"
                yield Difference(text, len(name) + _length(recorded[name]))
            elif name not in recorded:
                text = f"{place} is sent ({_short(sent[name])}) and was not recorded"
                yield Difference(text, len(name) + _length(sent[name]))
            else:
                yield from differences(recorded[name], sent[name], place)
    elif isinstance(recorded, list) and isinstance(sent, list):
        for number, (one, other) in enumerate(zip(recorded, sent, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
        if len(recorded) != len(sent):
            shorter = min(len(recorded), len(sent))
            surplus = sum(map(_length, [*recorded[shorter:], *sent[shorter:]]))
            yield Difference(f"{where} had {len(recorded)} entries and has {len(sent)}", surplus)
    elif recorded != sent or type(recorded) is not type(sent):
        yield Difference(f"{where} was {_short(recorded)} and is {_short(sent)}", _unlike(recorded, sent))


def _length(value: Json) -> int:
    return len(msgspec.json.encode(value))


def _unlike(recorded: Json, sent: Json) -> int:
    """How long the two are without what they begin and end with alike."""
    one, other = msgspec.json.encode(recorded), msgspec.json.encode(sent)
    ahead = _alike(one, other)
    one, other = one[ahead:][::-1], other[ahead:][::-1]
    return max(len(one), len(other)) - _alike(one, other)


def _alike(one: bytes, other: bytes) -> int:
    """How long the beginning is that both share."""
    unlike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))


def _short(value: Json) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
