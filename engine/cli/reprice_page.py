"""A repricing as one HTML page to hand on: no script, no network, nothing beside the file.

Amounts are exact: all their digits are shown, and the sums are sums of what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from html import escape

import msgspec

from tracestore import PriceTable, RepriceReport

from .money import percent

_SESSIONS = 50
_DAYS_IN_CHART = 92


class Line(msgspec.Struct, frozen=True):
    """A row of a comparison; amounts in nano-USD."""

    name: str
    calls: int
    unpriced_before: int
    before: int
    unpriced: int
    after: int

    @property
    def comparable(self) -> bool:
        """A difference means something only between sums over the same calls."""
        return self.unpriced == self.unpriced_before == 0


def lines(report: RepriceReport, by: str) -> list[Line]:
    """The report by ``model``, ``day`` or ``session``."""
    match by:
        case "model":
            rows = [(row.model, row) for row in report.models]
            return [_line(name, row) for name, row in rows]
        case "day":
            return [_line(row.day, row) for row in report.days]
        case _:
            return [_line(row.session_id or "(no session)", row) for row in report.sessions]


def _line(name: str, row: msgspec.Struct) -> Line:
    parts = ("calls", "unpriced_before", "before_nano_usd", "unpriced", "after_nano_usd")
    return Line(name, *(getattr(row, part) for part in parts))


def total(report: RepriceReport) -> Line:
    """All calls of the report."""
    return Line(
        "all",
        report.calls,
        report.unpriced_before,
        report.sum_before_nano_usd,
        report.unpriced,
        report.sum_after_nano_usd,
    )


def page(
    report: RepriceReport, table: PriceTable, before: str, *, calls_of: str, source: str, now: datetime
) -> str:
    """The page. before: what the costs were until now, in words; calls_of: which calls; source: the trace file."""
    everything = total(report)
    title = f"Model costs as if on {report.as_model}" if report.as_model else "Model costs repriced"
    state = "A trial: nothing was changed." if report.dry_run else "These are the current costs now."
    days = lines(report, "day")
    period = f"{days[0].name} to {days[-1].name} (UTC)" if days else "no calls"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(period)} · {everything.calls:,} calls · {escape(calls_of)} · {escape(state)}</p>",
        _totals(everything),
        _unpriced(report),
        "<h2>By model</h2>",
        _bars(lines(report, "model")),
        _table("Model", lines(report, "model"), everything),
        "<h2>By day</h2>",
        _bars(days[-_DAYS_IN_CHART:]),
        _table("Day", days, everything),
    ]
    sessions = lines(report, "session")
    if sessions:
        shown = sessions[:_SESSIONS]
        left = f"<p>The {len(shown):,} dearest of {len(sessions):,}.</p>" if len(shown) < len(sessions) else ""
        parts += ["<h2>By session</h2>", left, _table("Session", shown, None if left else everything)]
    parts += ["<h2>Where the prices come from</h2>", _sources(report, table, before)]
    made = now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts.append(
        f"<footer>Made {made} by Callboard from {escape(source)}. All amounts in US dollars, exact.</footer>"
    )
    body = "\n".join(part for part in parts if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def exact(nano_usd: int) -> str:
    """An amount with all its digits, and at least two decimals."""
    whole, _, part = f"{Decimal(abs(nano_usd)).scaleb(-9):.9f}".partition(".")
    part = part.rstrip("0").ljust(2, "0")
    return f"{'−' if nano_usd < 0 else ''}${int(whole):,}.{part}"


def _signed(nano_usd: int) -> str:
    return f"+{exact(nano_usd)}" if nano_usd > 0 else exact(nano_usd)


def _change(line: Line) -> tuple[str, str]:
    if not line.comparable:
        return "not comparable", ""
    return _signed(line.after - line.before), percent(line.before, line.after)


def _amount(calls: int, unpriced: int, nano_usd: int) -> str:
    if calls and calls == unpriced:
        return "unpriced"
    return f"{exact(nano_usd)} + {unpriced:,} unpriced" if unpriced else exact(nano_usd)


def _totals(line: Line) -> str:
    difference, per_cent = _change(line)
    cards = (
        ("Before", _amount(line.calls, line.unpriced_before, line.before)),
        ("After", _amount(line.calls, line.unpriced, line.after)),
        ("Difference", f"{difference} {per_cent}".strip()),
    )
    inside = "".join(f"<div><span>{name}</span><b>{escape(value)}</b></div>" for name, value in cards)
    return f'<div class="totals">{inside}</div>'


def _unpriced(report: RepriceReport) -> str:
    if not report.unpriced:
        return ""
    names = [f"{escape(row.model)} ({row.unpriced:,})" for row in report.models if row.unpriced]
    return (
        f'<p class="warning">{report.unpriced:,} calls have no price in this table and are in no sum: '
        f"{', '.join(names)}.</p>"
    )


def _table(heading: str, rows: Sequence[Line], everything: Line | None) -> str:
    head = "".join(f"<th>{name}</th>" for name in (heading, "Calls", "Before", "After", "Difference", ""))
    body = "".join(_row(row, "td") for row in rows)
    foot = f"<tfoot>{_row(everything, 'th')}</tfoot>" if everything is not None and len(rows) > 1 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>"


def _row(line: Line, cell: str) -> str:
    values = (
        line.name,
        f"{line.calls:,}",
        _amount(line.calls, line.unpriced_before, line.before),
        _amount(line.calls, line.unpriced, line.after),
        *_change(line),
    )
    return "<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in values) + "</tr>"


def _bars(rows: Sequence[Line]) -> str:
    """Two bars a row, before and after; lengths are whole thousandths of the longest."""
    longest = max((max(row.before, row.after) for row in rows), default=0)
    if longest <= 0:
        return ""
    parts = []
    for number, row in enumerate(rows):
        y = number * 34
        parts.append(f'<text x="0" y="{y + 19}">{escape(row.name)}</text>')
        for kind, amount, top in (("before", row.before, y + 4), ("after", row.after, y + 16)):
            width = 460 * amount // longest
            parts.append(
                f'<rect class="{kind}" x="250" y="{top}" width="{width}" height="10">'
                f"<title>{escape(row.name)}, {kind}: {exact(amount)}</title></rect>"
            )
            parts.append(f'<text class="small" x="{256 + width}" y="{top + 9}">{exact(amount)}</text>')
    height = len(rows) * 34
    key = '<p class="key"><i class="before"></i> before <i class="after"></i> after</p>'
    return f'{key}<svg viewBox="0 0 860 {height}" role="img" aria-label="Before and after">{"".join(parts)}</svg>'


def _sources(report: RepriceReport, table: PriceTable, before: str) -> str:
    notes = sorted({row.note for row in table.rows if row.note})
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes[:40])
    more = f"<li>and {len(notes) - 40:,} more notes</li>" if len(notes) > 40 else ""
    return (
        f"<p><b>Before:</b> {escape(before)}.</p>"
        f"<p><b>After:</b> {escape(report.label or 'prices')}, version <code>{report.version}</code>, "
        f"{len(table):,} price rows. A version is the hash of its rows, so the same version always means the same "
        f"prices.</p>" + (f"<ul>{listed}{more}</ul>" if notes else "")
    )


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2330;max-width:980px;margin:2.5rem auto;padding:0 1.5rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}p{margin:.4rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid #e3e7ee}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}thead th{color:#5b6575;font-weight:500}
.totals{display:flex;gap:1rem;margin:1.4rem 0;flex-wrap:wrap}
.totals div{flex:1;border:1px solid #e3e7ee;border-radius:8px;padding:.8rem 1rem}
.totals span{display:block;color:#5b6575}.totals b{font-size:1.25rem}
.warning{background:#fff4d6;border-left:4px solid #d99a00;padding:.5rem .8rem}
svg{width:100%;height:auto;margin:.4rem 0 1rem;font:12px system-ui,sans-serif}
svg .small{font-size:10px;fill:#5b6575}
.before{fill:#a9b4c6;background:#a9b4c6}.after{fill:#2f6fde;background:#2f6fde}
.key i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-left:.8em}
footer{margin-top:2.5rem;color:#5b6575;font-size:.85rem}code{font-size:.9em}
@media print{body{margin:0;max-width:none}svg,table{break-inside:avoid}}
"""
