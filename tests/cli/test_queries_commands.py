"""`callboard cost`, `stats`, `errors`, `sql`, and what `reprice` writes for others."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import TraceStore

from ..tracestore.trace_making import Maker
from .running import PRICES, call


def test_cost_for_programs_is_exact(traced: Path) -> None:
    """CSV has a head and USD beside nano-USD; JSON the same figures."""
    done = call("cost", "--by", "model,day", "--csv", home=traced, exits=0)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {(row["model"], row["cost_usd"]) for row in rows} == {
        ("local-chat:m", "0.000003000"),
        ("local-messages:m", "0.000003600"),
    }
    found = [json.loads(line) for line in call("cost", "--by", "total", "--json", home=traced).stdout.splitlines()]
    assert [(row["calls"], row["cost_nano_usd"]) for row in found] == [(3, 6_600)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cost", "--by", "colour"), "there are session"),
        (("cost", "--since", "yesterdayish"), "24h or 7d ago"),
        (("cost", "--min-cost", "much"), "no amount"),
        (("traces", "--tag", "team"), "team=search"),
        (("sql", "DELETE FROM calls"), "only reading is allowed"),
    ],
)
def test_what_means_nothing_is_answered_with_what_would(
    traced: Path, arguments: tuple[str, ...], said: str
) -> None:
    """The error names what there is."""
    done = call(*arguments, home=traced)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_stats_errors_and_sql_answer_in_every_form(traced: Path) -> None:
    """As a table, as JSON and as CSV."""
    for command in (("stats",), ("errors",), ("sql", "SELECT model, count(*) AS n FROM calls GROUP BY model")):
        for form in ((), ("--json",), ("--csv",)):
            done = call(*command, *form, home=traced, exits=0)
            assert "local-messages:m" in done.stdout
    recent = call("stats", "--since", "24h", "--by", "total", "--json", home=traced)
    assert json.loads(recent.stdout)["attempts"] == 3


def test_stats_tell_what_prompt_caches_saved_and_traces_which_key_was_sent(home: Path) -> None:
    """Under the prices in force; the key by its name, also as a filter and as a dimension."""

    async def make() -> None:
        maker = Maker()
        started = maker.started(model="openai:gpt-5")
        started = msgspec.structs.replace(started, data=msgspec.structs.replace(started.data, key="acme"))
        usage = TokenUsage(50, 10, cached_input_tokens=100_000)
        async with TraceStore(home / "trace.db") as store:
            await store.write([started, maker.completed(model="openai:gpt-5", usage=usage)])

    anyio.run(make)
    said = " ".join(call("stats", home=home, exits=0).stdout.split())
    assert "Prompt caches saved $0.112500: 100,000 tokens were read from them in 1 call." in said
    assert "acme" in call("traces", home=home, exits=0).stdout
    assert "acme" in call("cost", "--by", "key", home=home, exits=0).stdout
    assert "No such calls" in call("traces", "--key", "beta", home=home, exits=0).stdout


def test_a_repricing_as_a_page_stands_alone_and_shows_exact_amounts(traced: Path, tmp_path: Path) -> None:
    """Nothing is fetched or run; totals, days and versions are there; a second undo finds nothing."""
    file = tmp_path / "page.html"
    call("reprice", "--prices", str(PRICES), "--html", str(file), "--by", "day", home=traced, exits=0)
    text = file.read_text()
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            assert not {name for name, _ in attrs} & {"src", "href", "onload"}

    Tags().feed(text)
    assert "figure" in tags
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert "$0.0000066" in text
    assert "$0.0000069" in text
    assert "example prices, second version" in text
    assert "These are the current costs now." in text
    history = call("reprice", "--history", "--json", home=traced)
    (run,) = [json.loads(line) for line in history.stdout.splitlines()]
    assert (run["calls"], run["sum_before_nano_usd"], run["sum_after_nano_usd"]) == (2, 6_600, 6_900)
    call("reprice", "--undo", home=traced, exits=0)
    call("reprice", "--undo", home=traced, exits=1)


def test_a_comparison_is_rows_for_programs_too(traced: Path) -> None:
    """One a model, with the difference; nothing else is on stdout."""
    trial = ("reprice", "--prices", str(PRICES), "--dry-run")
    rows = [json.loads(line) for line in call(*trial, "--json", home=traced).stdout.splitlines()]
    assert {row["model"] for row in rows} == {"local-chat:m", "local-messages:m"}
    assert sum(row["difference_nano_usd"] for row in rows) == 6_900 - 6_600
    days = list(csv.DictReader(io.StringIO(call(*trial, "--by", "day", "--csv", home=traced).stdout)))
    assert [(row["calls"], row["after_usd"]) for row in days] == [("2", "0.000006900")]


@pytest.mark.parametrize("page", ["missing/page.html", "."])
def test_a_page_that_cannot_be_written_is_told_before_anything_is_repriced(
    traced: Path, tmp_path: Path, page: str
) -> None:
    """The costs stay, and there is nothing to undo."""
    done = call("reprice", "--prices", str(PRICES), "--html", str(tmp_path / page), home=traced, exits=2)
    assert "folder" in done.stderr
    call("reprice", "--undo", home=traced, exits=1)
