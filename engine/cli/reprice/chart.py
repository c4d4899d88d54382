"""The two charts of a repricing's page, before and after in US dollars: bars by model, columns by day.

They are boxes with a width or a height in per cent, not a drawing: text keeps its size on a phone and on paper,
and long names break.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..common.harmless import one_line
from ..common.money import exact, rounded
from .lines import Line

_TICKS = 5


def bars(rows: Sequence[Line]) -> str:
    """Two bars a row. Empty if no amount is above zero."""
    longest = _longest(rows)
    if longest <= 0:
        return ""
    step = tick_step(longest)
    parts = [_caption(), *(_row(row, longest) for row in rows)]
    ticks = "".join(
        f'<span style="left:{_part(amount, longest)}">{exact(amount)}</span>'
        for amount in range(0, longest + 1, step)
    )
    parts.append(f'<div class="axis"><div class="scale">{ticks}</div></div>')
    return _figure(parts, "Bars: US dollars before and after, by model", _part(step, longest))


def columns(rows: Sequence[Line]) -> str:
    """Two columns a day. Empty for a single day, and if no amount is above zero."""
    highest = _longest(rows)
    if highest <= 0 or len(rows) < 2:
        return ""
    step = tick_step(highest)
    field = "".join(
        f'<div class="day" title="{escaped(_told(row))}">'
        f'<div class="before" style="height:{_part(row.before, highest)}"></div>'
        f'<div class="after" style="height:{_part(row.after, highest)}"></div></div>'
        for row in rows
    )
    shown = [rows[0], rows[len(rows) // 2], rows[-1]] if len(rows) > 2 else rows
    across = "".join(f"<span>{escaped(row.name)}</span>" for row in shown)
    amounts = range(0, highest + 1, step)
    ticks = "".join(f'<span style="bottom:{_part(amount, highest)}">{exact(amount)}</span>' for amount in amounts)
    widest = max((exact(amount) for amount in amounts), key=len)  # holds the room for all of them
    inside = (
        f'<div class="days" style="--days:{len(rows)}"><div class="up"><b>{widest}</b>{ticks}</div>'
        f'<div class="field">{field}</div><div class="across">{across}</div></div>'
    )
    return _figure([_caption(), inside], "Columns: US dollars before and after, by day", _part(step, highest))


def escaped(text: str) -> str:
    """Foreign text for a page: no markup of it, and nothing that turns its order around."""
    return escape(one_line(text))


def tick_step(longest: int) -> int:
    """A step of 1, 2 or 5 times a power of ten, in nano-USD. Five steps reach the longest bar or further."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if longest <= _TICKS * factor * power:
                return factor * power
        power *= 10


def _longest(rows: Sequence[Line]) -> int:
    return max((max(row.before, row.after) for row in rows), default=0)


def _row(row: Line, longest: int) -> str:
    pair = []
    for kind, amount in (("before", row.before), ("after", row.after)):
        said = rounded(amount) if row.comparable else "not comparable"
        pair.append(f'<div class="bar {kind}" style="width:{_part(amount, longest)}"><b>{said}</b></div>')
    return f'<div class="row"><span>{escaped(row.name)}</span><div class="scale">{"".join(pair)}</div></div>'


def _told(row: Line) -> str:
    return f"{row.name}: before {rounded(row.before)}, after {rounded(row.after)}"


def _caption() -> str:
    return '<figcaption>US dollars<i class="before"></i> before<i class="after"></i> after</figcaption>'


def _figure(parts: Sequence[str], label: str, step: str) -> str:
    return (
        f'<figure class="chart" role="group" aria-label="{label}" style="--step:{step}">{"".join(parts)}</figure>'
    )


def _part(amount: int, whole: int) -> str:
    """A part of a whole in per cent, to a hundredth, between nothing and the whole."""
    hundredths = max(0, min(amount, whole)) * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02}%"
