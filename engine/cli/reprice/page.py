"""A repricing as one HTML page to hand on, without scripts, network or further files.

Amounts in the tables are exact. All their digits are shown, and each sum is the sum of the shown amounts. Amounts
at the charts are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec

from callboard.bus.package_data import package_data
from callboard.tracestore import PriceTable, RepriceReport

from ..common.money import exact, percent, places, rounded
from ..common.words import plural
from .chart import bars, columns, escaped
from .lines import Line, lines, total

_SESSIONS = 50
_DAYS_IN_CHART = 92
_NOTES = 40
_HEADINGS = ("Calls", "Before", "After", "Difference", "", "Beside")


class Origin(msgspec.Struct, frozen=True):
    """The words of a page about its origin."""

    before: str
    """The prices of the costs before."""
    calls: str
    """The calls that were repriced."""
    source: str
    """The trace file."""
    now: datetime
    """The time at which the page was made."""


def page(report: RepriceReport, table: PriceTable, origin: Origin) -> str:
    """The page, as one string."""
    everything = total(report)
    models, days, sessions = (lines(report, by) for by in ("model", "day", "session"))
    digits = max(
        (places(amount) for row in (everything, *models, *days, *sessions) for amount in (row.before, row.after)),
        default=2,
    )
    table_of = partial(_table, digits=max(2, digits))
    title = f"Model costs under {report.label or report.version}"
    if report.as_model:
        title = f"Model costs as if on {report.as_model}, under {report.label or report.version}"
    parts = [
        f"<h1>{escaped(title)}</h1>",
        _facts(report, days, origin),
        _totals(everything),
        _beside(report),
        _in_flight(report),
    ]
    if models:
        parts += ["<h2>By model</h2>", bars(models), table_of("Model", models, everything)]
    if days:
        parts += ["<h2>By day (UTC)</h2>", _last_days(days), table_of("Day", days, everything)]
    if sessions:
        shown = sessions[:_SESSIONS]
        left = f"<p>The {len(shown):,} dearest of {len(sessions):,}.</p>" if len(shown) < len(sessions) else ""
        parts += ["<h2>By session</h2>", left, table_of("Session", shown, None if left else everything)]
    parts += ["<h2>Where the prices come from</h2>", _sources(report, table)]
    made = origin.now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts.append(
        f"<footer>Made {made} by Callboard from {escaped(origin.source)}. All amounts are in US dollars; "
        "those in the tables are exact.</footer>"
    )
    return _document(title, "\n".join(part for part in parts if part))


def _document(title: str, body: str) -> str:
    style = package_data(__name__, "page.css").decode()
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>\n{style}</style></head><body>\n{body}\n</body></html>\n"
    )


def _facts(report: RepriceReport, days: Sequence[Line], origin: Origin) -> str:
    """What was compared, in four lines."""
    after = f"{report.label or 'prices'}, version {report.version}"
    facts = (
        ("Calls", f"{plural(report.calls, 'call')}{_period(days)}: {origin.calls}"),
        ("Before", origin.before),
        ("After", f"as if {report.as_model} had served all of them, under {after}" if report.as_model else after),
        ("State", "A trial: nothing was changed." if report.dry_run else "These are the current costs now."),
    )
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escaped(said)}</dd>' for name, said in facts)}</dl>"


def _period(days: Sequence[Line]) -> str:
    if not days:
        return ""
    first, last = days[0].name, days[-1].name
    return f" on {first} (UTC)" if first == last else f" from {first} to {last} (UTC)"


def _last_days(days: Sequence[Line]) -> str:
    shown = days[-_DAYS_IN_CHART:]
    left = f"<p>The last {len(shown)} of {len(days):,} days.</p>" if len(shown) < len(days) else ""
    return left + columns(shown)


def _change(line: Line, digits: int) -> tuple[str, str]:
    """The difference and the per cent."""
    if not line.comparable:
        return "not comparable", ""
    change = line.after - line.before
    sign = "+" if change > 0 else ""
    return f"<span>{sign}{exact(change, digits)}</span>", percent(line.before, line.after).replace("-", "−")


def _amount(line: Line, nano_usd: int, digits: int) -> str:
    return f"<span>{exact(nano_usd, digits)}</span>" if line.comparable else "-"


def _totals(line: Line) -> str:
    """The totals, rounded for the eye. The tables' last lines have them exactly."""
    before, after = (rounded(amount) if line.comparable else "-" for amount in (line.before, line.after))
    change, per_cent = "not comparable", ""
    if line.comparable:
        sign = {1: "+", -1: "−", 0: ""}[(line.after > line.before) - (line.after < line.before)]
        change = f"{sign}{rounded(abs(line.after - line.before))}"
        per_cent = percent(line.before, line.after).replace("-", "−")
    cards = (
        ("Before", before, ""),
        ("After", after, ""),
        ("Difference", change, per_cent),
    )
    inside = "".join(
        f"<div><span>{name}</span><b>{value} <small>{note}</small></b></div>" for name, value, note in cards
    )
    return f'<div class="totals">{inside}</div>'


def _beside(report: RepriceReport) -> str:
    """The calls that are in neither sum, with their models, and the number of estimated calls."""
    everything, notes = total(report), []
    if everything.beside:
        compared = plural(everything.sums.compared, "call")
        models = [f"{escaped(row.name)}: {', '.join(row.beside)}" for row in lines(report, "model") if row.beside]
        notes.append(f"Both sums are over the {compared} with a cost before and after.")
        notes.append(f"Beside them: {', '.join(everything.beside)}.")
        notes += [f"They are of {'; '.join(models)}."] if models else []
    if everything.sums.unknown:
        notes.append(f"Of {plural(everything.sums.unknown, 'call')} more not even the usage is known.")
    if everything.sums.estimated:
        notes.append(f"Of {plural(everything.sums.estimated, 'call')} the usage is an estimate.")
    return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _in_flight(report: RepriceReport) -> str:
    if not report.in_flight:
        return ""
    follow = "they are in no sum" if report.dry_run else "they get their new costs when they end"
    return f'<p class="note">{plural(report.in_flight, "call")} had not ended yet; {follow}.</p>'


def _table(heading: str, rows: Sequence[Line], everything: Line | None, *, digits: int) -> str:
    head = "".join(f"<th>{name}</th>" for name in (heading, *_HEADINGS))
    body = "".join(_row(row, "td", digits) for row in rows)
    last = f"<tfoot>{_row(everything, 'th', digits)}</tfoot>" if everything is not None and len(rows) > 1 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{last}</table>"


def _row(line: Line, cell: str, digits: int) -> str:
    values = (
        f"{line.calls:,}",
        _amount(line, line.before, digits),
        _amount(line, line.after, digits),
        *_change(line, digits),
        "<br>".join(line.beside),
    )
    cells = "".join(
        f'<{cell} data-label="{label}">{value}</{cell}>' if value else f"<{cell}></{cell}>"
        for label, value in zip(_HEADINGS, values, strict=True)
    )
    return f"<tr><{cell}>{escaped(line.name)}</{cell}>{cells}</tr>"


def _sources(report: RepriceReport, table: PriceTable) -> str:
    notes = sorted({row.note for row in table.rows if row.note})
    listed = "".join(f"<li>{escaped(note)}</li>" for note in notes[:_NOTES])
    more = f"<li>and {len(notes) - _NOTES:,} more notes</li>" if len(notes) > _NOTES else ""
    label = escaped(report.label or "Prices")
    return (
        f"<p>{label}, version <code>{report.version}</code>: {plural(len(table), 'price row')}. "
        "A version is the hash of its rows, so the same version always means the same prices."
        + (f" The rows' notes:</p><ul>{listed}{more}</ul>" if notes else "</p>")
    )
