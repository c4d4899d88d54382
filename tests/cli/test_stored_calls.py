"""`callboard traces` and `callboard reprice`, on files that a real engine left."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import sqlite3
from pathlib import Path

import pytest

from tests.support.present import present

from .running import PRICES, call, start

LABELS = ("example prices, first version", "example prices, second version")


def test_traces_lists_every_call_with_its_model_tokens_and_cost(traced: Path) -> None:
    """A call that succeeded shows what it used and cost, one that failed that it did."""
    done = call("traces", home=traced, exits=0)
    lines = done.stdout.splitlines()
    (chat,) = [line for line in lines if "local-chat:m" in line]
    assert re.search(r"completed +local-chat:m +1 .* 10 +5 +\$0\.000003000$", chat), chat
    assert len([line for line in lines if "local-messages:m" in line and "failed" in line]) == 1
    assert "3 calls" in lines[-1]


def test_traces_as_json_is_one_object_a_line_and_needs_no_rich(traced: Path) -> None:
    """Scripts get every field, newest first."""
    done = call("traces", "--json", "--limit", "2", home=traced)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["failed", "completed"]
    assert rows[1]["usage"]["input_tokens"] == 10
    assert rows[1]["cost"]["nano_usd"] == 3600


@pytest.mark.parametrize(
    ("options", "models"),
    [
        (("--model", "local-chat:m"), ["local-chat:m"]),
        (("--model", "local-m*", "--status", "failed"), []),
        (("--model", "local-messages:*", "--status", "failed"), ["local-messages:m"]),
        (("--provider", "local-messages"), ["local-messages:m", "local-messages:m"]),
        (("--session", "ses_other"), []),
        (("--session", "ses_under_test", "--limit", "1"), ["local-messages:m"]),
        (("--since", "2020-01-01"), ["local-messages:m", "local-messages:m", "local-chat:m"]),
        (("--until", "2020-01-01T00:00+02:00"), []),
    ],
)
def test_traces_shows_only_what_the_filters_leave(
    traced: Path, options: tuple[str, ...], models: list[str]
) -> None:
    """Filters combine, and an empty answer is no failure."""
    done = call("traces", "--json", *options, home=traced, exits=0)
    assert [json.loads(line)["model"] for line in done.stdout.splitlines()] == models


def test_reprice_tells_the_difference_by_model_and_how_to_go_back(traced: Path) -> None:
    """The way back that is printed is a command that works."""
    done = call("reprice", "--prices", str(PRICES), home=traced, exits=0)
    assert LABELS[1] in done.stdout
    assert re.search(r"local-chat:m +1 +\$0\.000003000 +\$0\.000002400 +-\$0\.000000600 +-20%", done.stdout)
    (back,) = re.findall(r"To go back: .* (reprice --undo .*)", done.stdout)
    assert costs(traced) == [None, 4500, 2400]
    call(*back.split(), home=traced, exits=0)
    assert costs(traced) == [None, 3600, 3000]


def test_a_dry_run_and_a_what_if_change_nothing(traced: Path) -> None:
    """They only report, and say so."""
    for option in (["--dry-run"], ["--as-model", "anthropic:claude-sonnet-4-6"]):
        done = call("reprice", "--prices", str(PRICES), *option, home=traced, exits=0)
        assert "Nothing was changed." in done.stdout
        assert costs(traced) == [None, 3600, 3000]


def test_only_prices_can_be_tried(traced: Path) -> None:
    """Going back with --dry-run is refused, and the costs stay as they are."""
    call("reprice", "--prices", str(PRICES), home=traced, exits=0)
    for option in (["--undo"], ["--use", "call-time"], ["--resume"]):
        done = call("reprice", *option, "--dry-run", home=traced, exits=2)
        assert f"{option[0]} can't be tried with --dry-run, and nothing was changed" in done.stderr
        assert costs(traced) == [None, 4500, 2400]


def test_a_table_of_some_calls_compares_those_in_every_form(traced: Path, tmp_path: Path) -> None:
    """Text, JSON, CSV and page have both sums over the same calls, and the others beside them."""
    table, page = tmp_path / "chat.yaml", tmp_path / "page.html"
    table.write_text("prices: [{model: 'local-chat:*', input: 1, output: 1, cache_read: 1}]")
    command = ["reprice", "--prices", str(table), "--dry-run"]
    text = call(*command, "--html", str(page), home=traced).stdout
    assert re.search(r"all +2 +\$0\.000003000 +\S+ +\S+ .*1 no longer priced \(\$0\.000003600 before\)", text), (
        text
    )
    assert "1 call without a price in this table, and in no sum." in text
    assert "Beside them: 1 no longer priced ($0.000003600 before)" in page.read_text()
    (chat, messages) = map(json.loads, call(*command, "--json", home=traced).stdout.splitlines())
    assert (chat["compared"], chat["before_nano_usd"], chat["no_longer_priced"]) == (1, 3000, 0)
    assert (messages["compared"], messages["before_nano_usd"], messages["difference_nano_usd"]) == (0, 0, None)
    assert (messages["no_longer_priced"], messages["no_longer_priced_nano_usd"]) == (1, 3600)
    rows = list(csv.DictReader(call(*command, "--csv", home=traced).stdout.splitlines()))
    assert [row["no_longer_priced_nano_usd"] for row in rows] == ["0", "3600"]


def test_a_model_without_a_price_is_unpriced_not_free(traced: Path) -> None:
    """No sum and no difference is made up for calls that the table can't price."""
    done = call("reprice", "--prices", str(PRICES), "--as-model", "nobody:knows", home=traced)
    assert re.search(r"local-chat:m +1 +- +- +1 no longer priced \(\$0\.000003000 before\)", done.stdout), (
        done.stdout
    )
    assert "2 calls without a price" in done.stdout


def test_repricing_some_calls_leaves_the_others(traced: Path) -> None:
    """The filters of traces hold for reprice."""
    call("reprice", "--prices", str(PRICES), "--model", "local-chat:*", home=traced, exits=0)
    assert costs(traced) == [None, 3600, 2400]


@pytest.mark.parametrize(
    ("choice", "code", "said"),
    [
        (("--label", "First"), 0, LABELS[0]),
        (("--label", "example"), 2, "several tables have label 'example'; there are "),
        (("--label", "third"), 2, "no table has label 'third'; there are "),
        (("--version", "zz"), 2, "no table has version 'zz'; there are "),
    ],
)
def test_a_table_of_a_price_file_is_chosen_by_label_or_version(
    traced: Path, choice: tuple[str, ...], code: int, said: str
) -> None:
    """What fits no table, or several, is refused with what there is."""
    done = call("reprice", "--prices", str(PRICES), *choice, home=traced)
    assert done.returncode == code
    assert said in (done.stderr if code else done.stdout)


def test_a_discount_is_on_the_prices_of_the_file_or_of_new_calls(traced: Path) -> None:
    """Several names may be given, and the table's label says them."""
    half = ("--discount", "local-chat:*=0.5", "--discount", "local-messages:*=2")
    done = call("reprice", "--prices", str(PRICES), *half, "--dry-run", home=traced, exits=0)
    assert "0.5 x local-chat:*, 2 x local-messages:*" in done.stdout
    call("reprice", "--prices", str(PRICES), "--discount", "local-chat:*=0.5", home=traced, exits=0)
    assert costs(traced)[2] == 1200
    missing = call("reprice", "--discount", "nobody:*=0.5", home=traced, exits=2)
    assert "no price row is for 'nobody:*'" in missing.stderr


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ((), "reprice by what?"),
        (("--undo", "--discount", "a:*=1"), "--discount is for new prices"),
        (("--discount", "a:*=1", "--label", "first"), "give --prices FILE too"),
        (("--discount", "a:*"), "is no factor such as"),
        (("--discount", "a:*=x"), "the factor on 'a:*' is 'x'"),
    ],
)
def test_a_choice_of_prices_that_means_nothing_is_refused(
    traced: Path, choice: tuple[str, ...], said: str
) -> None:
    """With what to say instead."""
    assert said in call("reprice", *choice, home=traced, exits=2).stderr


@pytest.mark.parametrize("command", [("traces",), ("reprice", "--prices", str(PRICES))])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "there is no trace file at "),
        ("text", "is not a database"),
        ("foreign", "is a database of another application"),
        ("newer", "this Callboard knows versions up to "),
    ],
)
def test_a_file_that_is_no_trace_file_is_refused_in_one_line_and_left_alone(
    traced: Path, command: tuple[str, ...], kind: str, said: str
) -> None:
    """Whatever is wrong with the file, the command says what, ends with 1 and has not touched it."""
    file = traced / ("trace.db" if kind == "newer" else f"{kind}.db")
    match kind:
        case "text":
            file.write_text("not a database, but longer than the header of one would be " * 10)
        case "foreign":
            with contextlib.closing(sqlite3.connect(file)) as database, database:
                database.execute("CREATE TABLE other (x)")
        case "newer":
            with contextlib.closing(sqlite3.connect(file)) as database, database:
                database.execute("PRAGMA user_version = 9999")
    before = file.read_bytes() if file.exists() else None
    done = call(*command, "--db", str(file), home=traced, exits=1)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert str(file) in done.stderr
    assert (file.read_bytes() if file.exists() else None) == before


def test_without_a_trace_file_of_its_own_the_demos_is_taken(traced: Path) -> None:
    """After `callboard demo`, `callboard traces` works as it is."""
    (traced / "trace.db").rename(traced / "demo-trace.db")
    done = call("traces", home=traced, exits=0)
    assert "3 calls" in done.stdout
    assert "demo-trace.db" in done.stdout


def test_a_reader_that_leaves_early_gets_no_traceback(traced: Path) -> None:
    """`callboard traces | head` ends quietly."""
    with start("traces", "--json", home=traced) as process:
        present(process.stdout).close()
        _, err = process.communicate(timeout=40)
    assert process.returncode in (0, 141)  # 0 if all was written before the pipe was closed
    assert err == b""


@pytest.mark.parametrize("wrong", [(), ("nonsense",), ("traces", "--limit", "0"), ("traces", "--since", "soon")])
def test_arguments_that_mean_nothing_are_a_usage_error(home: Path, wrong: tuple[str, ...]) -> None:
    """argparse says what was expected, and the exit code is 2."""
    done = call(*wrong, home=home, exits=2)
    assert "usage: callboard" in done.stderr


def test_sql_without_a_statement_says_where_the_tables_are_told(home: Path) -> None:
    """And the exit code is that of a usage error."""
    assert "`callboard sql --schema` shows the tables" in call("sql", home=home, exits=2).stderr


def test_sql_with_a_wrong_name_says_where_the_right_ones_are_told(traced: Path) -> None:
    """A wrong word of SQL is none."""
    for wrong in ("SELECT cost_usd FROM calls", "SELECT 1 FROM call"):
        assert "; `callboard sql --schema` shows" in call("sql", wrong, home=traced, exits=1).stderr
    assert "--schema" not in call("sql", "SELECT FROM", home=traced, exits=1).stderr


def test_without_rich_the_error_says_what_to_install(traced: Path) -> None:
    """The extra is named in one line; what needs no table works without it."""
    done = call("traces", home=traced, without="rich", exits=2)
    assert 'pip install "callboard[cli]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1
    call("traces", "--json", home=traced, without="rich", exits=0)


def costs(home: Path) -> list[int | None]:
    """The current costs in nano-USD, newest call first."""
    done = call("traces", "--json", home=home)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [None if row["cost"] is None else row["cost"]["nano_usd"] for row in rows]
