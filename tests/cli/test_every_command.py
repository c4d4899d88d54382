"""Every command, in every output format, over a trace of a faulty day.

A command that reads a trace runs over a file and over a database on a server.

Commands and formats come from the parser. A command without an example here fails a test.
"""

from __future__ import annotations

import argparse
import ast
import csv
import inspect
import io
import json
import re
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from callboard.bus.files import write_private
from callboard.engine.cli.command_line import build_parser
from callboard.engine.cli.sanitize import sanitize
from callboard.tracestore import PostgresStore, TraceStore
from callboard.tracestore.call_columns import DIMENSIONS
from callboard.tracestore.collections import CollectionFile, Item, packed
from callboard.tracestore.prices.files import SHIPPED
from tests.support.depth import first_is_quick, is_quick
from tests.support.media_server import MediaServer, media_server
from tests.support.postgres_server import PostgresServer

from .faulty_day import HOSTILE, MODELS, SESSIONS, make_faulty_day
from .running import PRICES, call

STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r")
"""The escape sequences that rich writes to a terminal."""

FORMS = {"--json": "json", "--csv": "csv", "--html": "html"}

EXAMPLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "demo": (("--cassettes", "--plain"),),
    "ask": (
        *(("--model", "rude", HOSTILE), ("--model", "failing", HOSTILE), ("--model", "rude", "-x", HOSTILE)),
        *(("--model", HOSTILE, "x"), ("--session", HOSTILE, "-m", "rude", "x"), ("-a", "no\x1b[2J", "x")),
    ),
    "chat": (("--model", "rude"), ("--model", "failing"), ("--resume", "ses_captured"), ("--model", HOSTILE)),
    "embed": (("--model", "words", HOSTILE), ("--model", "failing", HOSTILE)),
    "collections add": (
        ("words", "--model", "words"),
        *(
            (HOSTILE, "--model", "words"),
            (HOSTILE, "--model", HOSTILE),
            ("c", "-m", "words", "-f", "{folder}/no\x1b[2J"),
        ),
    ),
    "collections list": ((),),
    "collections delete": (("hostile",), (HOSTILE,)),
    "collections path": ((),),
    "similar": (("hostile", HOSTILE), ("hostile", "-c", HOSTILE), (HOSTILE, "x")),
    "background list": ((),),
    "background read": ((HOSTILE,), ()),
    "batch submit": (("-", "--model", "rude"), ("{folder}/no\x1b[2J", "--model", HOSTILE)),
    "batch list": ((),),
    "batch wait": ((HOSTILE,),),
    "batch results": ((HOSTILE,),),
    "batch cancel": ((HOSTILE,),),
    "image": (
        ("--model", "draw", "-o", "{folder}/i.png", HOSTILE),
        ("--model", "failing", "-o", "{folder}/i", "x"),
    ),
    "video": (
        *(("--model", "film", "-o", "{folder}/v.mp4", "--every", "0.01", HOSTILE),),
        *(("--model", "film", "--no-wait", HOSTILE), ("--model", "failing", "--no-wait", "x")),
    ),
    "web": (("--bind", "0.0.0.0"), ("--bind", HOSTILE)),
    "clients add": (("acme", "--budget", "5/day"), (HOSTILE,), ("b", "--json", "--models", HOSTILE)),
    "clients change": ((HOSTILE,), ("acme", "--models", HOSTILE)),
    "clients budget": ((HOSTILE, "5/day"), ("acme", "none")),
    "clients rotate": ((HOSTILE,), ("acme", "--json")),
    "clients revoke": ((HOSTILE,),),
    "clients list": ((), ("--all",)),
    "serve": (("--host", HOSTILE), ("--host", "203.0.113.7")),
    "serve-mcp": ((), ("-m", HOSTILE), ("-T", HOSTILE, "--http", "--bind", HOSTILE)),
    "doctor": (("--offline",), ("--offline", "--db", "{folder}/no\x1b[2J\u202ename.db")),
    "traces": ((), *(("--model", model) for model in MODELS), ("--tag", f"team={HOSTILE}"), ("--limit", "3")),
    "sessions": (
        *((), *((session,) for session in SESSIONS)),
        *(("ses_captured", "--export", "{folder}/s\x1b[2J.json"), ("ses_captured", "--delete"), (HOSTILE,)),
    ),
    "logs": (
        *((), ("-q", "said"), ("-q", HOSTILE), ("-q", '-only "not'), ("--session", "ses_captured", "-n", "1")),
        ("-q", "x", "--db", "{folder}/no\x1b[2J.db"),
    ),
    "cost": ((), *(("--by", name) for name in (*DIMENSIONS, "total", "tag:team", f"tag:{HOSTILE}", "day,model"))),
    "budget": (
        *((), ("--max-cost-usd", "1"), ("--per", "model", "--window", "month"), ("--window", "86400")),
        *(
            ("--per", "tag:team", "--of", HOSTILE),
            ("--max-tokens", "0", "--per", "session"),
            ("--window", HOSTILE),
        ),
    ),
    "stats": ((), *(("--by", name) for name in (*DIMENSIONS, "total", "tag:team", "operation,status"))),
    "errors": ((), ("--error-class", HOSTILE), ("--error-class", "")),
    "sql": (
        *(("--schema",), ("--schema", "calls"), ("--schema", HOSTILE), ()),
        *(("select * from calls",), ("select data from events",), ("select * from no\x1b[2J_table",)),
        *(("select cast(x'ff1b' as text), x'1bff', 9e999, -9223372036854775808, null, char(27, 8238)",),),
        *(("select 1 as \"\x1b[2J\u202e\", '=1+1', '-5', '+a', char(10)",), ("select * from calls where 0",)),
    ),
    "models": (
        *((), (MODELS[0],), (HOSTILE,), ("--all", "--provider", "openai"), ("--provider", "evil")),
        *(("update", "--from", "{prices}"), ("update", "--from", "{list}"), ("update", "--shipped")),
    ),
    "prices list": ((), ("gpt-5",)),
    "prices show": ((MODELS[0],), (f"evil:{HOSTILE}",)),
    "prices explain": ((MODELS[0],), (f"evil:{HOSTILE}", "--tier", HOSTILE), (MODELS[0], "--served", HOSTILE)),
    "prices use": ((str(PRICES),), ("{folder}/\x1b[2J",), ("--published",)),
    "prices update": (("--from", "{prices}", "--dry-run"), ("--from", "{folder}/\x1b[2J"), ("--shipped",)),
    "keys set": (("openai",), (HOSTILE,), ("A_KEY", HOSTILE)),
    "keys list": ((),),
    "keys get": (("A_KEY",), (HOSTILE,)),
    "keys remove": (("A_KEY",), ("openai",)),
    "keys path": ((),),
    "plugins": ((),),
    "completion": (
        *(("bash",), ("zsh",), ("fish",), (), ("--line", "callboard traces --session ", "--breaks", ":")),
        ("--line", f"callboard {HOSTILE}"),
    ),
    "templates list": ((),),
    "templates show": (("hostile",), (HOSTILE,)),
    "templates edit": (("hostile",), (HOSTILE,)),
    "templates path": ((), ("hostile",)),
    "reprice": (
        *(("--prices", str(PRICES), "--by", by) for by in ("model", "day", "session")),
        *(("--prices", str(PRICES), "--dry-run", "--model", model) for model in MODELS),
        *(("--prices", str(PRICES), "--as-model", f"evil:{HOSTILE}"), ("--history",), ("--undo",), ("--resume",)),
        *(("--prices", str(PRICES), "--tag", f"team={HOSTILE}"), ("--use", "call-time"), ("--use", HOSTILE)),
        *(("--undo", "--dry-run"), ("--use", "call-time", "--dry-run")),
    ),
    "record": (
        ("--model", "rude", "-o", "{folder}/r.json", HOSTILE),
        ("--model", HOSTILE, "-o", "{folder}/r\x1b[2J.json", "x"),
    ),
    "replay": ((), ("--session", SESSIONS[0]), ("--topic", "llm.*"), ("--call", "req_1")),
    "export": (("-",), ("{folder}/e\x1b[2J.out",), ("-", "--under", HOSTILE), ("-", "--tag", f"team={HOSTILE}")),
    "import": (("claude-code", "{folder}"), ("codex", "{folder}/\x1b[2J", "--dry-run"), (HOSTILE,)),
    "prune": (("--older-than", "1d", "--dry-run"), ("--older-than", "1d"), ("--vacuum",)),
    "ship": (("--once",), ("--once", "--db", "{folder}/no\x1b[2J.db")),
    "backup": (("{folder}/b\x1b[2J.db",),),
    "upgrade": ((), ("--db", "{folder}/no\x1b[2J.db")),
}
"""Arguments by command. The tests add the formats and the required `--format`."""

MODELS_YAML = """
adapters:
  rude: {{type: "tests.cli.adapters:Rude"}}
  failing: {{type: "tests.cli.adapters:Hostile"}}
  toy: {{type: scripted, options: {{replies: ["-"]}}}}
  openai: {{type: openai, base_url: "{url}", retry: {{base_delay: 0.01}}}}
models:
  "rude:m": {{adapter: rude, aliases: [rude]}}
  "failing:m": {{adapter: failing, aliases: [failing, {hostile}]}}
  "toy:words": {{adapter: toy, kind: embedding, aliases: [words]}}
  "openai:gpt-image-2": {{adapter: openai, kind: image, aliases: [draw]}}
  "openai:sora-2": {{adapter: openai, kind: video, aliases: [film]}}
"""


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser that have no subcommands, by name."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, inner in action.choices.items():
            yield from commands(inner, f"{name} {word}".strip())


PARSERS = dict(commands(build_parser()))


def test_each_command_that_draws_is_marked() -> None:
    """The mark lets the command line report a missing package before the command starts."""
    silent = [name for name, parser in PARSERS.items() if _draws(parser) and not parser.get_default("draws")]
    assert silent == []


def _draws(parser: argparse.ArgumentParser) -> bool:
    """Whether the command's function draws with rich, directly or through functions of its module."""
    run = parser.get_default("run")
    module = sys.modules[run.__module__]
    used, fresh = set[str](), {run.__name__}
    while fresh:
        name = fresh.pop()
        used.add(name)
        own = getattr(module, name, None)
        if (inspect.isfunction(own) or inspect.isclass(own)) and own.__module__ == module.__name__:
            found = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(own))))
            fresh |= {each.id for each in found if isinstance(each, ast.Name)} - used
    return bool(used & {"make_console", "write_rows", "progress_bar"})


def forms(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    """The options of each output format of a command. The first entry has no options."""
    needed = next((action for action in parser._actions if action.required and action.choices), None)
    if needed is not None:
        yield from ((needed.option_strings[0], str(choice)) for choice in needed.choices or ())
        return
    yield ()
    for action in parser._actions:
        for option in set(action.option_strings) & FORMS.keys():
            yield (option, "{folder}/page.html") if option == "--html" else (option,)


def cases() -> Iterator[tuple[str, ...]]:
    for name, parser in PARSERS.items():
        for form in forms(parser):
            yield from ((name, *form, *example) for example in EXAMPLES.get(name, ()))


def one_of_each(found: Iterable[tuple[str, ...]]) -> list[Any]:
    """The cases. A quick run has one case of each command, and its first machine-readable case."""
    seen: set[tuple[str, bool]] = set()
    marked = []
    for words in found:
        kind = words[0], bool({"--csv", "--json", "jsonl"} & set(words))
        marks = pytest.mark.deep("each example of a command, in each form") if kind in seen else ()
        seen.add(kind)
        marked.append(pytest.param(words, marks=marks))
    return marked


def in_words(words: tuple[str, ...]) -> str:
    return " ".join(words).encode("unicode_escape").decode()[:70]


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("day") / "trace.db"
    make_faulty_day(TraceStore(path), PRICES)
    return path


@pytest.fixture(scope="session")
def day_on_server(postgres_server: PostgresServer) -> str:
    """The name of a database with the faulty day. Tests use copies of that database."""
    return postgres_server.template("faulty_day", lambda dsn: make_faulty_day(PostgresStore(dsn), PRICES))


@pytest.fixture(scope="session")
def server() -> Iterator[MediaServer]:
    with media_server() as running:
        yield running


@pytest.fixture
def faulty(home: Path, day: Path, server: MediaServer) -> Path:
    """A new home folder with the faulty day, because some commands change the trace."""
    shutil.copy(day, home / "trace.db")
    hostile = json.dumps(sanitize(HOSTILE))
    (home / "models.yaml").write_text(MODELS_YAML.format(url=server.url, hostile=hostile))
    (home / "templates").mkdir()
    (home / "templates" / "hostile.yaml").write_text(json.dumps({"prompt": HOSTILE}))
    write_private(home / "keys.json", json.dumps({"A_KEY": "sk-1", f"B {HOSTILE}": "sk-2"}).encode())
    with CollectionFile(home / "embeddings.db") as file:
        items = [
            Item(name, b"", packed([1.0, 0.5]), HOSTILE, json.dumps({HOSTILE: HOSTILE})) for name in (HOSTILE, "x")
        ]
        file.put("hostile", items, model=f"toy:{HOSTILE}", space=HOSTILE)
        file.put(HOSTILE, items, model="toy:words", space="words")
    (home / "list.json").write_text(json.dumps({HOSTILE: {"mode": "chat", "litellm_provider": HOSTILE}}))
    return home


@pytest.fixture
def on_server(faulty: Path, postgres_server: PostgresServer, day_on_server: str) -> Iterator[str]:
    """The address of a database with the faulty day. The home folder has no trace file."""
    (faulty / "trace.db").unlink()
    with postgres_server.clean_database(day_on_server) as dsn:
        yield dsn


def given(word: str, folder: Path) -> str:
    places = {"{folder}": folder, "{prices}": SHIPPED, "{list}": folder / "home/list.json"}
    for name, place in places.items():
        word = word.replace(name, str(place))
    return word


def test_every_command_has_an_example() -> None:
    assert EXAMPLES.keys() == PARSERS.keys()


@pytest.mark.parametrize("words", one_of_each(cases()), ids=in_words)
def test_each_command_shows_a_faulty_day(words: tuple[str, ...], faulty: Path, tmp_path: Path) -> None:
    check(words, faulty, tmp_path, {})


ON_SERVERS = [words for words in cases() if "--store" in PARSERS[words[0]].format_help()]
SHOWN = [words for words in ON_SERVERS if not {"--csv", "--json", "jsonl"} & set(words)]
"""The cases that do not write rows. Another test compares the rows."""


@pytest.mark.parametrize("words", one_of_each(SHOWN), ids=in_words)
def test_each_command_shows_the_same_day_on_a_server(
    words: tuple[str, ...], on_server: str, home: Path, tmp_path: Path
) -> None:
    """The checks are the same, and no output has the password of the address."""
    done = check(words, home, tmp_path, {"CALLBOARD_STORE": on_server})
    password = urlsplit(on_server).password or "no password"
    assert password not in done.stdout + done.stderr
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or password.encode() not in file.read_bytes()


ROWS = [
    words
    for words in ON_SERVERS
    if words[0] in ("traces", "sessions", "cost", "budget", "stats", "errors", "export")
    and {"--json", "jsonl"} & set(words)
    and not {"--delete", "--export"} & set(words)
]


@pytest.mark.parametrize("words", one_of_each(ROWS), ids=in_words)
def test_a_file_and_a_server_have_the_same_rows(
    words: tuple[str, ...], on_server: str, home: Path, tmp_path: Path, day: Path
) -> None:
    """The order is the same. Call ids and rows with hostile text are not compared. A server leaves gaps between
    its ids.
    """
    name, *rest = words
    arguments = (*name.split(), *(given(word, tmp_path) for word in rest))
    server = call(*arguments, home=home, more={"CALLBOARD_STORE": on_server})
    shutil.copy(day, home / "trace.db")
    file = call(*arguments, home=home)
    assert server.returncode == file.returncode, server.stderr
    assert comparable(server.stdout) == comparable(file.stdout)


def comparable(rows: str) -> list[object]:
    """Rows without their call ids, and without the rows that have a hostile text."""
    decoded = [msgspec.json.decode(line) for line in rows.split("\n") if line and "owned" not in line]
    return [{name: rounded(value) for name, value in row.items() if name != "call_id"} for row in decoded]


def rounded(value: object) -> object:
    """Round a float, because such sums and shares depend on the order of addition."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+\.\d+", value):
        value = float(value)  # Amounts in USD are decimal text.
    inexact = isinstance(value, float) or (isinstance(value, int) and abs(value) > 2**53)
    return float(f"{value:.12g}") if inexact else value


def check(
    words: tuple[str, ...], home: Path, tmp_path: Path, more: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command, and check the properties that all commands share."""
    name, *rest = words
    arguments = (*name.split(), *(given(word, tmp_path) for word in rest))
    done = call(*arguments, home=home, said=f"{sanitize(HOSTILE)}\n", more=more)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert harmful(done.stderr) == []
    if name not in ("ask", "export"):  # These two commands remove control characters only at a terminal.
        assert harmful(done.stdout) == []
    if "--json" in rest or "jsonl" in rest:
        check_json(done.stdout, whole=name == "doctor")
    elif "--csv" in rest or "csv" in rest:
        check_csv(done.stdout)
    for pattern in ("page.html", "*.json", "*.out", "*.db"):
        for file in tmp_path.glob(pattern):
            check_file(file)
    return done


WIDTHS = (20, 60, 100, 400)
DRAWING = ("traces", "sessions", "logs", "cost", "budget", "errors", "sql", "models", "prices explain", "doctor")
SHOWING = sorted(set(PARSERS) - {"ask", "demo", "chat", "embed", "image", "video", "export"})


@pytest.mark.more("more examples of each command")
@pytest.mark.parametrize("width", first_is_quick(WIDTHS, "more widths"))
@pytest.mark.parametrize(
    "name",
    first_is_quick(
        sorted(SHOWING, key=lambda name: name not in DRAWING),
        "other commands that draw the same tables, or only print lines",
        quick=len(DRAWING),
    ),
)
def test_a_terminal_of_any_width_shows_the_faulty_day(name: str, width: int, faulty: Path, tmp_path: Path) -> None:
    """The output has colours, and no control characters except for the styles of rich."""
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(width), "TERM": "xterm"}
    for example in EXAMPLES[name][: 1 if is_quick() else 3]:
        words = (given(word, tmp_path) for word in example)
        done = call(*name.split(), *words, home=faulty, more=terminal)
        assert done.returncode in (0, 1, 2), done.stderr
        assert "Traceback" not in done.stderr
        assert harmful(STYLES.sub("", done.stdout)) == []


def harmful(text: str) -> list[str]:
    """The characters of a text that `sanitize` changes."""
    return sorted({character for character in text if sanitize(character) != character})


def check_json(text: str, *, whole: bool) -> None:
    for line in [text] if whole else text.removesuffix("\n").split("\n"):
        if not line:
            continue
        assert isinstance(msgspec.json.decode(line), dict)


def check_csv(text: str) -> None:
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    if rows:
        head, *cells = rows
        assert len(set(head)) == len(head)
        assert {len(row) for row in cells} <= {len(head)}
        assert not [cell for row in cells for cell in row if cell.startswith(("=", "@", "+")) and cell != "+a"]


def check_file(path: Path) -> None:
    """Check that only the owner can read the file, and that a page has no foreign markup and no hostile
    characters.
    """
    if not path.is_file():
        return
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if path.suffix == ".html":
        page = path.read_text()
        assert "<script" not in page
        assert harmful(page) == []
