"""What one reply has taught of a provider's limits, so that others with the same key need not find it out."""

from __future__ import annotations

import msgspec

from .amounts import MINUTE_US, Reading
from .gate import NO_HEADERS, Headers


class Lesson(msgspec.Struct, frozen=True):
    """What a reply says of the limits of its model."""

    model: str
    """The model."""
    headers: Headers = NO_HEADERS
    """What its headers say."""
    pause_us: int = 0
    """Microseconds for which the provider wants to be left alone, after a refusal; 0 without one."""
    opens: bool = False
    """Whether the request was sent behind the last refusal, so that the provider takes requests again."""


def aged(lesson: Lesson, age_us: int) -> Lesson | None:
    """A lesson some microseconds later; None if it says nothing any more."""
    if age_us >= MINUTE_US:
        return None
    requests, tokens, output = lesson.headers
    headers = Headers(_aged(requests, age_us), _aged(tokens, age_us), output)
    return msgspec.structs.replace(lesson, headers=headers, pause_us=max(lesson.pause_us - age_us, 0))


def _aged(reading: Reading | None, age_us: int) -> Reading | None:
    if reading is None or reading.reset_us is None:
        return reading
    return reading._replace(reset_us=max(reading.reset_us - age_us, 1))
