"""What the id of a stream tells: when its turn was made, by the clock of the node that made it."""

from __future__ import annotations

_ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

RECENT_US = 2 * 3_600_000_000
"""The age up to which a turn may just have been made, in microseconds: clocks may differ by an hour and more."""


def begun_us(stream_id: str) -> int | None:
    """The time at which a turn was made, in microseconds since the epoch; None if its id has none."""
    digits = stream_id.partition("_")[2][:10]
    if len(digits) != 10 or any(digit not in _ULID_DIGITS for digit in digits):
        return None
    milliseconds = 0
    for digit in digits:
        milliseconds = milliseconds * 32 + _ULID_DIGITS.index(digit)
    return milliseconds * 1000


def may_be_new(stream_id: str, now_us: int) -> bool:
    """Whether a turn may have been made a moment ago, so that its node may not have said anything of it yet."""
    begun = begun_us(stream_id)
    return begun is not None and now_us - begun < RECENT_US
