"""Shows a repricing as a table, as rows for programs, or as a single HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import Any, Literal, TypeAlias

import msgspec

from callboard.bus.files import package_data
from callboard.bus.values.usage import CostSum
from callboard.tracestore import PriceTable, RepriceReport, RepriceSums

from .sanitize import one_line
from .table import (
    Column,
    FittingTable,
    Format,
    difference,
    exact,
    figure,
    percent,
    places,
    plural,
    rounded,
    usd,
    write_records,
)

By: TypeAlias = Literal["model", "day", "session"]

_FIELDS = (
    *("calls", "compared", "before_nano_usd", "after_nano_usd", "difference_nano_usd"),
    *("newly_priced", "newly_priced_nano_usd", "no_longer_priced", "no_longer_priced_nano_usd"),
    *("unpriced_before", "unpriced", "estimated", "unknown"),
)


class Line(msgspec.Struct, frozen=True):
    name: str  # the model, day or session
    sums: RepriceSums
    """The sums of its calls. `before` and `after` are in nano-USD, over the calls that have a cost on both
    sides."""

    @property
    def calls(self) -> int:
        return self.sums.calls

    @property
    def before(self) -> int:
        return self.sums.before_nano_usd

    @property
    def after(self) -> int:
        return self.sums.after_nano_usd

    @property
    def sum(self) -> CostSum:
        """The cost of all calls of the line after the repricing."""
        sums = self.sums
        calls = sums.calls + sums.unknown
        return CostSum(sums.all_after_nano_usd, calls, sums.estimated, sums.unpriced, sums.unknown)

    @property
    def comparable(self) -> bool:
        """Whether any call has a cost before and after."""
        return self.sums.compared > 0 or self.calls == 0

    @property
    def beside(self) -> tuple[str, ...]:
        """Describe the calls that neither sum includes."""
        sums = self.sums
        never = sums.unpriced - sums.no_longer_priced
        notes = (
            (sums.no_longer_priced, f"no longer priced ({usd(sums.no_longer_priced_nano_usd)} before)"),
            (sums.newly_priced, f"newly priced ({usd(sums.newly_priced_nano_usd)})"),
            (never, "unpriced"),
            (sums.unknown, "unknown"),
        )
        return tuple(f"{count:,} {words}" for count, words in notes if count)


def lines_of(report: RepriceReport, by: By) -> list[Line]:
    """The lines of the report by ``model``, ``day`` or ``session``."""
    match by:
        case "model":
            return [Line(row.model, row) for row in report.models]
        case "day":
            return [Line(row.day, row) for row in report.days]
        case "session":
            return [Line(row.session_id or "(no session)", row) for row in report.sessions]


def total(report: RepriceReport) -> Line:
    return Line("all", report.total)


def write_lines(form: Format, report: RepriceReport, by: By) -> None:
    """Write the lines for a program.

    before_nano_usd and after_nano_usd are sums over the `compared` calls, which have a cost before and after.
    Without such calls, the difference is None.
    """

    def record(line: Line) -> dict[str, Any]:
        difference = line.after - line.before if line.comparable else None
        return {by: line.name, **{name: getattr(line.sums, name, difference) for name in _FIELDS}}

    write_records(form, (by, *_FIELDS), map(record, lines_of(report, by)))


def in_flight_text(report: RepriceReport) -> str:
    """The number of calls that had not ended, and what becomes of them. Empty if there are none."""
    if not report.in_flight:
        return ""
    follow = "they are not included in sums" if report.dry_run else "they get their new costs when they end"
    return f"{plural(report.in_flight, 'call')} had not ended yet; {follow}."


# --- The table ---


def reprice_table(report: RepriceReport, by: By = "model") -> FittingTable[Line]:
    """A table with a line for each model, day or session, and the sums below.

    The sums include the calls with a cost before and after. If there are other calls, a last column counts them.
    """
    everything = total(report)
    columns: list[Column[Line]] = [
        Column(by, lambda line: line.name, folds=True, footer="all"),
        figure("calls", lambda line: f"{line.calls:,}", may_go=1, footer=f"{report.calls:,}"),
        *(
            figure(name, text, may_go=0 if name else 2, footer=text(everything))
            for name, text in _COMPARED.items()
        ),
    ]
    if everything.beside:
        beside = ", ".join(everything.beside)
        columns.append(Column("beside these", lambda line: ", ".join(line.beside), folds=True, footer=beside))
    return FittingTable(columns, lines_of(report, by))


_COMPARED: Mapping[str, Callable[[Line], str]] = {
    "before": lambda line: usd(line.before) if line.comparable else "-",
    "after": lambda line: usd(line.after) if line.comparable else "-",
    "difference": lambda line: difference(line.before, line.after) if line.comparable else "",
    "": lambda line: percent(line.before, line.after) if line.comparable else "",
}


# --- The page ---
# Amounts in the page's tables are exact: they show all digits, and each sum is the sum of the shown amounts.
# Amounts in charts are rounded.

_SESSIONS = 50
_DAYS_IN_CHART = 92
_NOTES = 40
_HEADINGS = ("Calls", "Before", "After", "Difference", "", "Beside")


class Origin(msgspec.Struct, frozen=True):
    """The texts on a page about the origin of its data."""

    before: str  # the prices before the repricing
    calls: str  # the calls that were repriced
    source: str  # the trace file
    now: datetime  # the time when the page was made


def page(report: RepriceReport, table: PriceTable, origin: Origin) -> str:
    everything = total(report)
    models, days, sessions = (lines_of(report, by) for by in ("model", "day", "session"))
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
        _footnotes(report),
        f'<p class="note">{in_flight}</p>' if (in_flight := in_flight_text(report)) else "",
    ]
    if models:
        parts += ["<h2>By model</h2>", bars(models), table_of("Model", models, everything)]
    if days:
        last = days[-_DAYS_IN_CHART:]
        note = f"<p>The last {len(last)} of {len(days):,} days.</p>" if len(last) < len(days) else ""
        parts += ["<h2>By day (UTC)</h2>", note + columns(last), table_of("Day", days, everything)]
    if sessions:
        shown = sessions[:_SESSIONS]
        cut = len(shown) < len(sessions)
        note = f"<p>The {len(shown):,} most expensive of {len(sessions):,}.</p>" if cut else ""
        parts += ["<h2>By session</h2>", note, table_of("Session", shown, None if cut else everything)]
    parts += ["<h2>Where the prices come from</h2>", _sources(report, table)]
    made = origin.now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts.append(
        f"<footer>Made {made} by Callboard from {escaped(origin.source)}. All amounts are in US dollars; "
        "those in the tables are exact.</footer>"
    )
    body = "\n".join(part for part in parts if part)
    style = package_data(__name__, "reprice_page.css").decode()
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>\n{style}</style></head><body>\n{body}\n</body></html>\n"
    )


def _facts(report: RepriceReport, days: Sequence[Line], origin: Origin) -> str:
    """Describe the compared calls in four lines."""
    after = f"{report.label or 'prices'}, version {report.version}"
    facts = (
        ("Calls", f"{plural(report.calls, 'call')}{_period(days)}: {origin.calls}"),
        ("Before", origin.before),
        ("After", f"as if {report.as_model} had served all of them, under {after}" if report.as_model else after),
        ("State", "A trial: nothing was changed." if report.dry_run else "These are the current costs now."),
    )
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escaped(value)}</dd>' for name, value in facts)}</dl>"


def _period(days: Sequence[Line]) -> str:
    if not days:
        return ""
    first, last = days[0].name, days[-1].name
    return f" on {first} (UTC)" if first == last else f" from {first} to {last} (UTC)"


def _change(line: Line, digits: int) -> tuple[str, str]:
    """The difference, and the relative change in per cent."""
    if not line.comparable:
        return "not comparable", ""
    change = line.after - line.before
    sign = "+" if change > 0 else ""
    return f"<span>{sign}{exact(change, digits)}</span>", percent(line.before, line.after).replace("-", "−")


def _amount(line: Line, nano_usd: int, digits: int) -> str:
    return f"<span>{exact(nano_usd, digits)}</span>" if line.comparable else "-"


def _totals(line: Line) -> str:
    """The totals, rounded. The last lines of the tables have the exact amounts."""
    before, after = (rounded(amount) if line.comparable else "-" for amount in (line.before, line.after))
    change, per_cent = "not comparable", ""
    if line.comparable:
        sign = {1: "+", -1: "−", 0: ""}[(line.after > line.before) - (line.after < line.before)]
        change = f"{sign}{rounded(abs(line.after - line.before))}"
        per_cent = percent(line.before, line.after).replace("-", "−")
    cards = (("Before", before, ""), ("After", after, ""), ("Difference", change, per_cent))
    inside = "".join(
        f"<div><span>{name}</span><b>{value} <small>{note}</small></b></div>" for name, value, note in cards
    )
    return f'<div class="totals">{inside}</div>'


def _footnotes(report: RepriceReport) -> str:
    """The notes below the sums: the calls that neither sum includes, their models, and the number of estimated
    costs.
    """
    everything, notes = total(report), []
    if everything.beside:
        compared = plural(everything.sums.compared, "call")
        models = [
            f"{escaped(row.name)}: {', '.join(row.beside)}" for row in lines_of(report, "model") if row.beside
        ]
        notes.append(f"Both sums are over the {compared} with a cost before and after.")
        notes.append(f"In addition: {', '.join(everything.beside)}.")
        notes += [f"Models: {'; '.join(models)}."] if models else []
    if everything.sums.unknown:
        notes.append(f"The usage of {plural(everything.sums.unknown, 'more call')} is unknown.")
    if everything.sums.estimated:
        notes.append(f"The usage of {plural(everything.sums.estimated, 'call')} is an estimate.")
    return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _table(heading: str, rows: Sequence[Line], everything: Line | None, *, digits: int) -> str:
    head = "".join(f"<th>{name}</th>" for name in (heading, *_HEADINGS))
    body = "".join(_page_row(row, "td", digits) for row in rows)
    last = (
        f"<tfoot>{_page_row(everything, 'th', digits)}</tfoot>" if everything is not None and len(rows) > 1 else ""
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{last}</table>"


def _page_row(line: Line, cell: str, digits: int) -> str:
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


# --- The charts ---
# There are bars by model and columns by day, before and after in US dollars. They are HTML boxes with a width or a
# height in per cent. So text keeps its size on a phone and on paper, and long names break.

_TICKS = 5
_CAPTION = '<figcaption>US dollars<i class="before"></i> before<i class="after"></i> after</figcaption>'


def bars(rows: Sequence[Line]) -> str:
    """Two bars for each row. Empty if no amount is above zero."""
    longest = _longest(rows)
    if longest <= 0:
        return ""
    step = tick_step(longest)
    parts = [_CAPTION, *(_row(row, longest) for row in rows)]
    ticks = "".join(
        f'<span style="left:{_part(amount, longest)}">{exact(amount)}</span>'
        for amount in range(0, longest + 1, step)
    )
    parts.append(f'<div class="axis"><div class="scale">{ticks}</div></div>')
    return _figure(parts, "Bars: US dollars before and after, by model", _part(step, longest))


def columns(rows: Sequence[Line]) -> str:
    """Two columns for each day. Empty for a single day, and if no amount is above zero."""
    highest = _longest(rows)
    if highest <= 0 or len(rows) < 2:
        return ""
    step = tick_step(highest)
    field = "".join(
        f'<div class="day" title="{escaped(row.name)}: before {rounded(row.before)}, after {rounded(row.after)}">'
        f'<div class="before" style="height:{_part(row.before, highest)}"></div>'
        f'<div class="after" style="height:{_part(row.after, highest)}"></div></div>'
        for row in rows
    )
    shown = [rows[0], rows[len(rows) // 2], rows[-1]] if len(rows) > 2 else rows
    across = "".join(f"<span>{escaped(row.name)}</span>" for row in shown)
    amounts = range(0, highest + 1, step)
    ticks = "".join(f'<span style="bottom:{_part(amount, highest)}">{exact(amount)}</span>' for amount in amounts)
    widest = max((exact(amount) for amount in amounts), key=len)  # the widest amount sets the width for all
    inside = (
        f'<div class="days" style="--days:{len(rows)}"><div class="up"><b>{widest}</b>{ticks}</div>'
        f'<div class="field">{field}</div><div class="across">{across}</div></div>'
    )
    return _figure([_CAPTION, inside], "Columns: US dollars before and after, by day", _part(step, highest))


def escaped(text: str) -> str:
    """Escape text from other sources for a page. Characters that reverse the text order are removed."""
    return escape(one_line(text))


def tick_step(longest: int) -> int:
    """A step of 1, 2 or 5 times a power of ten, in nano-USD. Five steps cover the longest bar."""
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
        amount_text = rounded(amount) if row.comparable else "not comparable"
        pair.append(f'<div class="bar {kind}" style="width:{_part(amount, longest)}"><b>{amount_text}</b></div>')
    return f'<div class="row"><span>{escaped(row.name)}</span><div class="scale">{"".join(pair)}</div></div>'


def _figure(parts: Sequence[str], label: str, step: str) -> str:
    return (
        f'<figure class="chart" role="group" aria-label="{label}" style="--step:{step}">{"".join(parts)}</figure>'
    )


def _part(amount: int, total: int) -> str:
    """A part of a whole in per cent with two decimals, limited to the range from 0 to 100 %."""
    hundredths = max(0, min(amount, total)) * 10_000 // total
    return f"{hundredths // 100}.{hundredths % 100:02}%"
