"""Counts, durations and times in a few words."""

from __future__ import annotations

from datetime import datetime

from callboard.tracestore.timestamps import iso_moment


def seconds(milliseconds: int | None) -> str:
    """A duration, short: milliseconds below a second."""
    if milliseconds is None:
        return "-"
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rate(part: float | None) -> str:
    """A part of a whole in per cent; a dash if there is no whole."""
    return "-" if part is None else f"{part * 100:.1f}%"


def moment_text(ts_us: int | None) -> str:
    """A local time. The date is left out if it is today."""
    if ts_us is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(ts_us // 1_000_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return iso_moment(ts_us)  # of a clock that was set to nonsense
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")
