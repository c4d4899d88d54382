"""Commands that read recorded calls and sessions, on files of a real engine."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard import PriceRow, PriceTable, tool
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import TraceStore
from tests.support.engines import running
from tests.support.scripted import Say

from ..tracestore.trace_making import Maker
from .running import PRICES, call

LABELS = ("example prices, first version", "example prices, second version")


def test_traces_lists_every_call_with_its_model_tokens_and_cost(traced: Path) -> None:
    """A completed call has its tokens and cost. A failed call has its status. JSON has one object a line."""
    done = call("traces", home=traced, exits=0)
    lines = done.stdout.splitlines()
    (chat,) = [line for line in lines if "local-chat:m" in line]
    assert re.search(r"completed +local-chat:m +1 .* 10 +5 +\$0\.000003000$", chat), chat
    assert len([line for line in lines if "local-messages:m" in line and "failed" in line]) == 1
    assert "3 calls" in lines[-1]
    done = call("traces", "--json", "--limit", "2", home=traced)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["failed", "completed"]
    assert (rows[1]["usage"]["input_tokens"], rows[1]["cost"]["nano_usd"]) == (10, 3600)


def test_traces_shows_only_the_calls_that_match_the_filters(traced: Path) -> None:
    """Filters can be combined. An empty result exits with 0."""
    chat, messages = ["local-chat:m"], ["local-messages:m"]
    for options, models in {
        "--model local-chat:m": chat,
        "--model local-m* --status failed": [],
        "--model local-messages:* --status failed": messages,
        "--provider local-messages": messages * 2,
        "--session ses_other": [],
        "--session ses_under_test --limit 1": messages,
        "--since 2020-01-01": [*messages * 2, *chat],
        "--until 2020-01-01T00:00+02:00": [],
    }.items():
        done = call("traces", "--json", *options.split(), home=traced, exits=0)
        assert [json.loads(line)["model"] for line in done.stdout.splitlines()] == models


def test_traces_shows_the_calls_of_a_tool_below_its_turn(tmp_path: Path) -> None:
    """Each row has its own cost and the cost with its children."""

    async def made() -> None:
        path = tmp_path / "trace.db"
        said = Say(calls=[("delegate", {})]), Say("child"), Say("done")
        prices = PriceTable.from_rows([PriceRow(model="s:*", input=1_000_000, output=1_000_000)], "test")
        async with running(*said, store=path, prices=prices) as (engine, _):

            @tool
            async def delegate() -> str:
                """Delegate."""
                return (await engine.generate("s:m", "Go.")).text

            await engine.session("s:m", tools=[delegate]).send("Go.")

    anyio.run(made)
    lines = call("traces", "--tree", home=tmp_path, exits=0).stdout.splitlines()
    (root,) = [line for line in lines if re.search(r"completed +s:m +2 +\$0\.000030000 +\$0\.000045000", line)]
    (below,) = [line for line in lines if "└" in line]
    assert re.search(r"1 +\$0\.000015000 +\$0\.000015000$", below)
    assert lines.index(root) < lines.index(below)
    (row,) = map(json.loads, call("cost", "--by", "root", "--json", home=tmp_path).stdout.splitlines())
    assert (row["calls"], row["cost_nano_usd"]) == (3, 45_000)


def test_reprice_shows_the_difference_by_model_and_the_undo_command(traced: Path) -> None:
    """The printed undo command works. `reprice` has the filters of `traces`."""
    done = call("reprice", "--prices", str(PRICES), home=traced, exits=0)
    assert LABELS[1] in done.stdout
    assert re.search(r"local-chat:m +1 +\$0\.000003000 +\$0\.000002400 +-\$0\.000000600 +-20%", done.stdout)
    (back,) = re.findall(r"To undo: .* (reprice --undo .*)", done.stdout)
    assert costs(traced) == [None, 4500, 2400]
    call(*back.split(), home=traced, exits=0)
    assert costs(traced) == [None, 3600, 3000]
    call("reprice", "--prices", str(PRICES), "--model", "local-chat:*", home=traced, exits=0)
    assert costs(traced) == [None, 3600, 2400]


def test_a_dry_run_and_a_comparison_change_nothing(traced: Path) -> None:
    """`--dry-run` with an undo is refused. Calls without a price are unpriced, and not free."""
    for option in (["--dry-run"], ["--as-model", "anthropic:claude-sonnet-4-6"], ["--as-model", "nobody:knows"]):
        done = call("reprice", "--prices", str(PRICES), *option, home=traced, exits=0)
        assert "Nothing was changed." in done.stdout
        assert costs(traced) == [None, 3600, 3000]
    assert re.search(r"local-chat:m +1 +- +- +1 no longer priced \(\$0\.000003000 before\)", done.stdout)
    assert "2 calls without a price" in done.stdout
    call("reprice", "--prices", str(PRICES), home=traced, exits=0)
    for option in (["--undo"], ["--use", "call-time"], ["--resume"]):
        done = call("reprice", *option, "--dry-run", home=traced, exits=2)
        assert (
            f"{option[0]} can't be combined with --dry-run: only --prices can. Nothing was changed" in done.stderr
        )
        assert costs(traced) == [None, 4500, 2400]


def test_a_table_of_some_calls_is_compared_in_every_format(traced: Path, tmp_path: Path) -> None:
    """Text, JSON, CSV and the page compare the same calls, and list the others."""
    table, page = tmp_path / "chat.yaml", tmp_path / "page.html"
    table.write_text("prices: [{model: 'local-chat:*', input: 1, output: 1, cache_read: 1}]")
    command = ["reprice", "--prices", str(table), "--dry-run"]
    text = call(*command, "--html", str(page), home=traced).stdout
    assert re.search(r"all +2 +\$0\.000003000 +\S+ +\S+ .*1 no longer priced \(\$0\.000003600 before\)", text), (
        text
    )
    assert "1 call without a price in this table, not included in sums." in text
    assert "In addition: 1 no longer priced ($0.000003600 before)" in page.read_text()
    (chat, messages) = map(json.loads, call(*command, "--json", home=traced).stdout.splitlines())
    assert (chat["compared"], chat["before_nano_usd"], chat["no_longer_priced"]) == (1, 3000, 0)
    assert (messages["compared"], messages["before_nano_usd"], messages["difference_nano_usd"]) == (0, 0, None)
    assert (messages["no_longer_priced"], messages["no_longer_priced_nano_usd"]) == (1, 3600)
    rows = list(csv.DictReader(call(*command, "--csv", home=traced).stdout.splitlines()))
    assert [row["no_longer_priced_nano_usd"] for row in rows] == ["0", "3600"]
    by_day = call("reprice", "--prices", str(PRICES), "--dry-run", "--by", "day", "--csv", home=traced).stdout
    (day,) = csv.DictReader(by_day.splitlines())
    assert (day["calls"], day["after_usd"]) == ("2", "0.000006900")


def test_a_table_of_a_price_file_is_chosen_by_label_or_version(traced: Path) -> None:
    """An ambiguous or unknown table is refused with a list of the tables."""
    file = ("--prices", str(PRICES))
    assert LABELS[0] in call("reprice", *file, "--label", "First", home=traced, exits=0).stdout
    for choice, message in {
        (*file, "--label", "example"): "several tables have label 'example'; it has ",
        (*file, "--label", "third"): "no table has label 'third'; it has ",
        (*file, "--version", "zz"): "no table has version 'zz'; it has ",
        (): "nothing to reprice with",
        ("--undo", "--discount", "a:*=1"): "--discount changes prices",
        ("--discount", "a:*=1", "--label", "first"): "add --prices FILE",
        ("--discount", "a:*"): "is not a factor such as",
        ("--discount", "a:*=x"): "the factor on 'a:*' is 'x'",
    }.items():
        assert message in call("reprice", *choice, home=traced, exits=2).stderr


def test_a_discount_changes_the_prices_of_the_file_or_of_new_calls(traced: Path) -> None:
    """`--discount` can occur several times, and the table's label has each discount."""
    half = ("--discount", "local-chat:*=0.5", "--discount", "local-messages:*=2")
    done = call("reprice", "--prices", str(PRICES), *half, "--dry-run", home=traced, exits=0)
    assert "0.5 x local-chat:*, 2 x local-messages:*" in done.stdout
    call("reprice", "--prices", str(PRICES), "--discount", "local-chat:*=0.5", home=traced, exits=0)
    assert costs(traced)[2] == 1200
    missing = call("reprice", "--discount", "nobody:*=0.5", home=traced, exits=2)
    assert "no price row matches 'nobody:*'" in missing.stderr


@pytest.mark.parametrize("command", [("traces",), ("reprice", "--prices", str(PRICES))])
def test_a_file_that_is_no_trace_file_is_refused_in_one_line(traced: Path, command: tuple[str, ...]) -> None:
    """The exit code is 1, and the file does not change."""
    (traced / "text.db").write_text("not a database, but longer than the header of one would be " * 10)
    for name, statement in (("foreign", "CREATE TABLE other (x)"), ("trace", "PRAGMA user_version = 9999")):
        with contextlib.closing(sqlite3.connect(traced / f"{name}.db")) as database, database:
            database.execute(statement)
    for name, said in {
        "missing": "no trace file at ",
        "text": "is not a database",
        "foreign": "is a database of another application",
        "trace": "this Callboard supports versions up to ",
    }.items():
        file = traced / f"{name}.db"
        before = file.read_bytes() if file.exists() else None
        done = call(*command, "--db", str(file), home=traced, exits=1)
        (line,) = done.stderr.splitlines()
        assert (said in line, str(file) in line, done.stdout) == (True, True, "")
        assert (file.read_bytes() if file.exists() else None) == before


def test_without_a_trace_file_the_demos_file_is_read(traced: Path) -> None:
    """`callboard traces` works after `callboard demo` without arguments."""
    (traced / "trace.db").rename(traced / "demo-trace.db")
    done = call("traces", home=traced, exits=0)
    assert "3 calls" in done.stdout
    assert "demo-trace.db" in done.stdout


def test_without_rich_a_command_changes_nothing(traced: Path, tmp_path: Path) -> None:
    """One line names the package, before the command starts its work. Output without tables works without rich."""
    before = (traced / "trace.db").read_bytes()
    copy = tmp_path / "copy.db"
    for words in (("reprice", "--prices", str(PRICES)), ("backup", str(copy))):
        (line,) = call(*words, home=traced, without="rich", exits=2).stderr.splitlines()
        assert 'pip install "callboard[cli]"' in line
    call("traces", "--json", home=traced, without="rich", exits=0)
    assert (traced / "trace.db").read_bytes() == before
    assert not copy.exists()


def costs(home: Path) -> list[int | None]:
    """The current costs in nano-USD, newest call first."""
    done = call("traces", "--json", home=home)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [None if row["cost"] is None else row["cost"]["nano_usd"] for row in rows]


# -- `callboard export`, on files of a real engine.


def test_export_writes_every_attempt_and_needs_no_rich(traced: Path, tmp_path: Path) -> None:
    """The CSV file and the JSON lines on stdout have the same rows."""
    target = tmp_path / "calls.csv"
    done = call("export", "--format", "csv", str(target), home=traced, without="rich", exits=0)
    assert "3 rows written to" in done.stderr
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["completed", "completed", "failed"]
    assert [row["cost_usd"] for row in rows] == ["0.000003000", "0.000003600", ""]
    done = call("export", "--format", "jsonl", "-", home=traced)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["cost_nano_usd"] for row in objects] == [3000, 3600, None]
    assert [row["call_id"] for row in objects] == [int(row["call_id"]) for row in rows]
    assert done.stderr == ""


def test_export_takes_filters_and_price_versions(traced: Path) -> None:
    """An unknown price version is refused."""
    done = call("export", "--format", "jsonl", "--status", "failed", "-", home=traced)
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["failed"]
    refused = call("export", "--format", "jsonl", "--under", "ffffffffffff", "-", home=traced)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "ffffffffffff" in refused.stderr
    call("reprice", "--prices", str(PRICES), home=traced, exits=0)
    done = call("export", "--format", "jsonl", "--model", "local-chat:m", "-", home=traced)
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["cost_nano_usd"], row["at_call_time_nano_usd"]) == (2400, 3000)
    under = ("--under", row["cost_pricing_version"], "--model", "local-chat:m")
    assert call("export", "--format", "jsonl", *under, "-", home=traced).stdout == done.stdout


@pytest.mark.parametrize(("path", "code"), [("{home}/no/such/folder/x.csv", 1), ("{home}/trace.db", 2)])
def test_an_export_to_a_path_that_cannot_be_written_is_refused(traced: Path, path: str, code: int) -> None:
    """The error is one line, and the trace file does not change."""
    before = (traced / "trace.db").read_bytes()
    done = call("export", "--format", "csv", path.format(home=traced), home=traced)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert (traced / "trace.db").read_bytes() == before


# -- `callboard cost`, `stats`, `errors` and `sql`, and the files of `reprice`.


def test_cost_for_programs_is_exact(traced: Path) -> None:
    """CSV has amounts in USD. JSON has the same amounts."""
    done = call("cost", "--by", "model,day", "--csv", home=traced, exits=0)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {(row["model"], row["cost_usd"]) for row in rows} == {
        ("local-chat:m", "0.000003000"),
        ("local-messages:m", "0.000003600"),
    }
    (total,) = map(json.loads, call("cost", "--by", "total", "--json", home=traced).stdout.splitlines())
    assert (total["calls"], total["cost_nano_usd"]) == (3, 6_600)
    recent = call("stats", "--since", "24h", "--by", "total", "--json", home=traced)
    assert json.loads(recent.stdout)["attempts"] == 3


def test_the_error_of_a_wrong_argument_shows_a_valid_one(traced: Path) -> None:
    for arguments, message in {
        ("cost", "--by", "colour"): "not a group; use session",
        ("cost", "--since", "yesterdayish"): "24h or 7d ago",
        ("cost", "--min-cost", "much"): "not an amount",
        ("traces", "--tag", "team"): "team=search",
        (): "usage: callboard",
        ("nonsense",): "usage: callboard",
        ("traces", "--limit", "0"): "usage: callboard",
        ("traces", "--since", "soon"): "usage: callboard",
        ("sql",): "`callboard sql --schema` shows the tables",
    }.items():
        assert message in call(*arguments, home=traced, exits=2).stderr
    for statement, message in {
        "DELETE FROM calls": "only reading is allowed",
        "SELECT cost_usd FROM calls": "; `callboard sql --schema` shows",
        "SELECT 1 FROM call": "; `callboard sql --schema` shows",
    }.items():
        assert message in call("sql", statement, home=traced, exits=1).stderr
    assert "--schema" not in call("sql", "SELECT FROM", home=traced, exits=1).stderr


def test_stats_show_the_savings_of_prompt_caches_and_traces_show_the_key(home: Path) -> None:
    """Savings use the current prices. The key's name is a column, a filter and a dimension."""

    async def make() -> None:
        maker = Maker()
        started = maker.started(model="openai:gpt-5")
        started = msgspec.structs.replace(started, data=msgspec.structs.replace(started.data, key="acme"))
        usage = TokenUsage(50, 10, cached_input_tokens=100_000)
        async with TraceStore(home / "trace.db") as store:
            await store.write([started, maker.completed(model="openai:gpt-5", usage=usage)])

    anyio.run(make)
    text = " ".join(call("stats", home=home, exits=0).stdout.split())
    assert "Prompt caches saved $0.112500: 100,000 tokens were read from cache in 1 call." in text
    assert "acme" in call("traces", home=home, exits=0).stdout
    assert "acme" in call("cost", "--by", "key", home=home, exits=0).stdout
    assert "No matching calls" in call("traces", "--key", "beta", home=home, exits=0).stdout


def test_the_page_of_a_repricing_needs_no_other_file_and_shows_exact_amounts(traced: Path, tmp_path: Path) -> None:
    """The page loads and runs nothing. It has totals, days and versions. A second undo is refused."""
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


@pytest.mark.parametrize("page", ["missing/page.html", "."])
def test_a_page_that_cannot_be_written_is_refused_before_a_repricing(
    traced: Path, tmp_path: Path, page: str
) -> None:
    """The costs do not change, and an undo finds nothing."""
    done = call("reprice", "--prices", str(PRICES), "--html", str(tmp_path / page), home=traced, exits=2)
    assert "folder" in done.stderr
    call("reprice", "--undo", home=traced, exits=1)


# -- `callboard sessions`, and saved chats that are resumed.


def test_a_saved_chat_is_listed_printed_and_resumed(talkative: Path) -> None:
    """Each command prints the arguments of the next one."""
    saved = call("chat", "--save", "--system", "Be kind.", home=talkative, said="hello\nagain\n", exits=0)
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)
    listed = call("sessions", home=talkative, exits=0)
    (line,) = [line for line in listed.stdout.splitlines() if session in line]
    assert re.search(r"first +2 +2 +.* 4 +yes$", line.rstrip()), line
    shown = call("sessions", session, home=talkative)
    assert shown.stdout.splitlines() == [
        "system> Be kind.",
        "user> hello",
        "one:parrot> one heard 1 messages, last: hello",
        "user> again",
        "one:parrot> one heard 3 messages, last: again",
    ]
    resumed = call(
        "chat", "--resume", session, "--model", "second", home=talkative, said="still there?\n", exits=0
    )
    assert resumed.stdout.splitlines() == ["two heard 5 messages, last: still there?"]
    assert "4 messages so far" in resumed.stderr
    again = call("sessions", session, "--json", home=talkative)
    messages = [json.loads(line) for line in again.stdout.splitlines()]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    assert messages[-1]["metadata"]["model"] == "two:parrot"


def test_a_chat_is_not_stored_without_save(talkative: Path) -> None:
    """The session of the chat is listed as not resumable. Printing or resuming it gives an error of one line."""
    call("chat", home=talkative, said="a secret\n")
    listed = call("sessions", "--json", home=talkative)
    (row,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert (row["turns"], row["messages"], row["resumable"]) == (1, 0, False)
    for command in (("sessions", row["session_id"]), ("chat", "--resume", row["session_id"])):
        refused = call(*command, home=talkative, exits=1)
        (line,) = refused.stderr.splitlines()
        assert "capture_content=True" in line
        assert "chat --save" in line or command[0] == "chat"
    assert b"a secret" not in (talkative / "trace.db").read_bytes()


def test_a_transcript_can_not_steer_the_terminal(talkative: Path) -> None:
    """Control characters are removed. `--delete` needs a session."""
    saved = call("chat", "--save", "--model", "rude:m", home=talkative, said="hello\n")
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)
    shown = call("sessions", session, home=talkative)
    assert shown.stdout.splitlines()[-1] == "rude:m> a[2Jbc31md"
    assert "callboard sessions SESSION" in call("sessions", "--delete", home=talkative, exits=1).stderr


def test_a_saved_chat_is_exported_and_deleted(talkative: Path, tmp_path: Path) -> None:
    """The document has the messages."""
    saved = call("chat", "--save", home=talkative, said="a secret\n")
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)
    document = tmp_path / "session.json"
    call("sessions", session, "--export", str(tmp_path / "no" / "file"), home=talkative, exits=1)
    call("sessions", session, "--export", str(document), home=talkative, exits=0)
    assert json.loads(document.read_bytes())["messages"][0]["content"][0]["text"] == "a secret"
    deleted = call("sessions", session, "--delete", home=talkative, exits=0)
    assert "costs of its calls are kept" in deleted.stdout
    call("sessions", session, home=talkative, exits=1)
    assert len(call("traces", "--json", home=talkative).stdout.splitlines()) == 1
    call("sessions", session, "--delete", home=talkative, exits=1)
    assert "has no session 'ses_x'" in call("sessions", "ses_x", home=talkative, exits=1).stderr
