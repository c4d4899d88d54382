"""`callboard prune`, `backup`, `upgrade` and `ship`, `doctor`'s report on the trace, and traces on a server."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import PriceTable
from callboard.bus import ConfigurationError
from callboard.engine.cli.command_line import main
from callboard.engine.cli.upkeep import age, size
from callboard.engine.stores import StoreAddress
from callboard.tracestore import PostgresStore, TraceStore
from tests.support.engines import running
from tests.support.postgres_server import PostgresServer
from tests.support.scripted import Say
from tests.tracestore.trace_making import Maker, make_file_before

from .running import PRICES, call


def attempts(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return int(file.execute("SELECT count(*) FROM calls").fetchone()[0])


def moved_back(home: Path, days: int) -> Path:
    """Move the calls of the trace file `days` days into the past."""
    path = home / "trace.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        ((sql,),) = file.execute("SELECT sql FROM sqlite_master WHERE name = 'events_are_append_only'").fetchall()
        file.execute("DROP TRIGGER events_are_append_only")
        earlier = f"ts_us - {days * 86_400_000_000}"
        file.execute(f"UPDATE events SET ts_us = {earlier}")
        file.execute(f"UPDATE calls SET ts_us = {earlier}, finished_us = finished_us - {days * 86_400_000_000}")
        file.execute(sql)
    return path


def test_a_dry_run_of_prune_reports_the_calls_that_prune_deletes(traced: Path) -> None:
    """The dry run and the deletion report the same counts. The last call stays."""
    path = moved_back(traced, 100)
    before = attempts(path)
    dry = call("prune", "--older-than", "90d", "--dry-run", home=traced, exits=0)
    assert attempts(path) == before
    done = call("prune", "--older-than", "90d", home=traced, exits=0)
    counts = dry.stdout.split(", of ")[0].removeprefix("Would delete ")
    assert f"{before - 1} attempts" in counts
    assert f"Deleted {counts}." in done.stdout
    assert attempts(path) == 1
    assert call("prune", "--older-than", "200d", "--vacuum", home=traced).stdout.startswith("Deleted 0 attempts")


def test_prune_needs_an_age_and_a_file(traced: Path, tmp_path: Path) -> None:
    """Without an age, or without a file, nothing is deleted and no file is created."""
    done = call("prune", home=traced)
    assert (done.returncode, "--older-than" in done.stderr) == (2, True)
    missing = tmp_path / "none.db"
    for option in ((), ("--dry-run",)):
        done = call("prune", "--older-than", "1d", "--db", str(missing), *option, home=traced, exits=1)
        assert "no trace file" in done.stderr
    assert not missing.exists()


def test_backup_makes_a_file_that_other_commands_can_read(traced: Path, tmp_path: Path) -> None:
    """The command never overwrites a file."""
    target = tmp_path / "copy.db"
    call("backup", str(target), home=traced, exits=0)
    listed = [call("traces", "--json", "--db", str(path), home=traced) for path in (target, traced / "trace.db")]
    assert listed[0].stdout == listed[1].stdout != ""
    again = call("backup", str(target), home=traced)
    assert (again.returncode, "never overwrites" in again.stderr) == (1, True)


def test_upgrade_migrates_an_older_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading commands refuse an old file and name `upgrade`."""
    anyio.run(make_file_before, "call rows", home / "trace.db", monkeypatch)
    refused = call("traces", home=home, exits=1)
    assert "`callboard upgrade`" in refused.stderr
    assert "`callboard upgrade`" in call("doctor", "--offline", home=home, exits=1).stdout
    assert call("upgrade", home=home, exits=0).stdout.endswith("trace.db is now up to date.\n")
    call("traces", home=home, exits=0)
    assert call("upgrade", home=home, exits=0).stdout.endswith("trace.db was already up to date.\n")
    missing = call("upgrade", "--db", "none.db", home=home, exits=1)
    assert "no trace file" in missing.stderr
    on_server = call("upgrade", "--store", "postgresql://nobody@127.0.0.1:9/none", home=home, exits=2)
    assert "the owner" in on_server.stderr


def test_doctor_reports_lost_runs_spill_files_and_free_pages(traced: Path) -> None:
    """The checks are ok, and show the numbers."""
    path = traced / "trace.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE runs SET ended_us = NULL, ending = NULL")
        file.execute("UPDATE calls SET status = 'started' WHERE id = 1")
    path.with_name("trace.db.spill-run_dead.jsonl").write_bytes(b"{}\n")
    done = call("doctor", "--offline", "--json", home=traced)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert all(checks[name]["ok"] for name in ("store:runs", "store:spill", "store:space"))
    assert "1 lost with 1 calls without an end" in checks["store:runs"]["detail"]
    assert "trace.db.spill-run_dead.jsonl (3 bytes)" in checks["store:spill"]["detail"]
    assert "free pages" in checks["store:space"]["detail"]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [(age, "90d", 90 * 86_400), (age, "12h", 43_200), (size, "500M", 500_000_000), (size, "2gb", 2_000_000_000)],
)
def test_ages_and_sizes_are_read(read: object, text: str, value: int) -> None:
    assert callable(read)
    assert read(text) == value


# -- `callboard ship` copies a trace file to a server.


def test_ship_copies_the_file_once(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call of a dead process is closed as failed. The password is never shown."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("CALLBOARD_STORE", postgres_dsn)
    path, make = tmp_path / "trace.db", Maker("run_a")

    async def write() -> None:
        async with TraceStore(path) as store:
            await store.write([make.started("req_1"), make.completed("req_1"), make.started("req_2")])

    async def calls() -> list[tuple[str, str]]:
        async with PostgresStore.open_readonly(postgres_dsn) as store:
            return sorted((call.request_id, call.status) for call in await store.calls())

    anyio.run(write)
    assert main(["ship", "--once"]) == 0
    printed = capsys.readouterr().out
    assert "4 events sent to postgresql://" in printed.replace("\n", " ")
    assert postgres_dsn not in printed
    assert anyio.run(calls) == [("req_1", "completed"), ("req_2", "failed")]
    assert main(["ship", "--once"]) == 0
    assert "0 events" in capsys.readouterr().out


def test_ship_names_the_missing_store_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.delenv("CALLBOARD_STORE", raising=False)
    assert main(["ship", "--once"]) == 2
    assert "--store" in capsys.readouterr().err
    assert main(["ship", "--once", "--store", "postgresql://u@127.0.0.1:1/d"]) == 1
    assert "no trace file" in capsys.readouterr().err


# -- `--store` names a trace on a server.


def make_shared_trace(dsn: str) -> None:
    """Write two calls of one session to the database."""

    async def work() -> None:
        table = PriceTable.all_from_yaml(PRICES)[0]
        store = PostgresStore(dsn)
        async with running(store=store, prices=table, **{"local-chat": [Say("one"), Say("two")]}) as (engine, _):
            session = engine.session("local-chat:m", session_id="ses_shared")
            await session.send("first")
            await session.send("second")

    anyio.run(work)


@pytest.fixture(scope="module")
def template(postgres_server: PostgresServer) -> str:
    return postgres_server.template("two_calls", make_shared_trace)


@pytest.fixture
def shared(postgres_server: PostgresServer, template: str) -> Iterator[str]:
    """The address of a trace of two calls."""
    with postgres_server.clean_database(template) as dsn:
        yield dsn


def shown(dsn: str) -> str:
    """The address as outputs show it, without the password."""
    parts = urlsplit(dsn)
    return f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"


def test_a_command_names_its_trace_and_hides_the_password(shared: str, traced: Path) -> None:
    """The address is in an option or in a variable. A named file comes before the variable."""
    named = call("traces", "--store", shared, home=traced, exits=0)
    assert shown(shared) in named.stdout
    assert shared not in named.stdout
    by_variable = call("traces", home=traced, more={"CALLBOARD_STORE": shared}, exits=0)
    assert by_variable.stdout == named.stdout
    path = str(traced / "trace.db")
    rows = call("traces", "--json", "--db", path, home=traced, more={"CALLBOARD_STORE": shared}, exits=0)
    assert len(rows.stdout.splitlines()) == 3


def test_a_wrong_choice_of_a_trace_is_refused_without_the_password(shared: str, home: Path) -> None:
    """A file and a server cannot be combined."""
    password = str(urlsplit(shared).password)
    wrong, ambiguous = shared.replace(password, "Geheimwort"), "postgresql://me:Ge/heim@host/db"
    for words, more, exits, said in (
        (("cost", "--store", shared, "--db", "x.db"), {}, 2, "not allowed with"),
        (("cost", "--db", shared), {}, 2, "--store"),
        (("traces", "--store", wrong), {}, 1, "password authentication failed"),
        (("cost", "--store", ambiguous), {}, 2, "can't be read"),
        (("cost",), {"CALLBOARD_STORE": ambiguous}, 2, "can't be read"),
        (
            ("backup", "copy.db", "--store", shared),
            {},
            2,
            f"pg_dump --format=custom --file=copy.db {shown(shared)}",
        ),
    ):
        error = call(*words, home=home, more=more, exits=exits).stderr
        assert said in error
        assert "heim" not in error
        assert password not in error.replace("'--db'", "")


def test_without_the_driver_the_error_names_the_package_to_install(shared: str, home: Path) -> None:
    """The error is one line."""
    done = call("traces", "--store", shared, home=home, without="psycopg", exits=1)
    assert "pip install 'callboard[postgres]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert str(urlsplit(shared).password) not in done.stderr


@pytest.mark.parametrize(
    "command", ["traces", "doctor --offline", "prune --older-than 1d", "reprice --undo", "sql 1"]
)
def test_an_unreachable_server_is_an_error_without_a_traceback(command: str, home: Path) -> None:
    """The output has no traceback and no password."""
    address = "postgresql://me:Geheimwort@127.0.0.1:1/trace"
    done = call(*command.split(), "--store", address, home=home, exits=1)
    output = done.stdout + done.stderr
    assert "127.0.0.1" in output
    assert "Traceback" not in output
    assert "Geheim" not in output


def test_a_database_without_a_trace_stays_as_it_is(postgres_dsn: str, home: Path) -> None:
    """Neither a read nor a repricing creates the schema."""
    for command in ("traces", "reprice --undo", "prune --older-than 1d"):
        done = call(*command.split(), "--store", postgres_dsn, home=home, exits=1)
        assert "Traceback" not in done.stderr
    tables = "select count(*) from pg_namespace where nspname = 'callboard'"
    import psycopg

    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(tables).fetchall() == [(0,)]


def test_a_repricing_on_a_server_can_be_undone(shared: str, home: Path) -> None:
    """The printed undo command has the address without the password."""
    done = call("reprice", "--prices", str(PRICES), "--store", shared, home=home, exits=0)
    assert f"reprice --undo --store {shown(shared)}" in done.stdout
    undone = call("reprice", "--undo", "--store", shared, home=home, exits=0)
    assert "Undone" in undone.stdout


def test_doctor_reports_the_state_of_the_server(shared: str, home: Path) -> None:
    """The report has the server's version, whether the connection is encrypted, and the trace's address."""
    done = call("doctor", "--offline", "--json", "--store", shared, home=home)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["store"]["ok"]
    assert "PostgreSQL" in found["store"]["detail"]
    assert found["store:tls"]["ok"]
    assert found["store:writable"]["ok"]
    assert shown(shared) == json.loads(done.stdout)["places"]["trace"]


# -- The address of a trace on a server: valid and invalid forms, and the hidden password.

SHOWN = {
    "postgresql://host/db": "postgresql://host/db",
    "postgres://host/db": "postgresql://host/db",
    "postgresql://": "postgresql://",
    "postgresql:///db": "postgresql:///db",
    "postgresql://me:Geheim@host:5433/db": "postgresql://me@host:5433/db",
    "postgresql://:Geheim@host/db": "postgresql://host/db",
    "postgresql://me:Geh%40im@[::1]:5433/db?sslmode=verify-full": "postgresql://me@[::1]:5433/db?sslmode=verify-full",
    "postgresql://me@one:1,two:2/db?password=Geheim&sslmode=require": (
        "postgresql://me@one:1,two:2/db?sslmode=require"
    ),
    "postgresql:///db?host=/run/pg&sslpassword=Geheim": "postgresql:///db?host=/run/pg",
    "postgresql:///db?%70assword=Geheim&user=me": "postgresql:///db?user=me",
    "postgresql:///db?service=trace": "postgresql:///db?service=trace",
}


@pytest.mark.parametrize("given_text", SHOWN, ids=range(len(SHOWN)))
def test_an_address_is_shown_without_its_password(given_text: str) -> None:
    """The rest of the address stays, so that it can be typed again."""
    address = StoreAddress(given_text)
    assert str(address) == SHOWN[given_text]
    assert "Geh" not in repr(address)
    assert str(StoreAddress(str(address))) == str(address)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:Ge/heim@host/db",
        "postgresql://me:12/heim@host/db",
        "postgresql://me:Ge?heim@host/db",
        "postgresql://me:Ge#heim@host/db",
        "postgresql://me:Ge@heim@host/db",
        "postgresql://me:Ge heim@host/db",
        "postgresql://me:Ge[heim@host/db",
        "postgresql://me:Geheim\n@host/db",
        "postgresql://host:port/db",
        "postgresql://host/db?Geheim",
        "mysql://me:Geheim@host/db",
        "Geheim",
    ],
)
def test_an_ambiguous_address_is_refused_without_being_shown(text: str) -> None:
    """A reserved character could end the password early, and the rest of the password would be shown. The error
    advises to quote the character.
    """
    with pytest.raises(ConfigurationError) as caught:
        StoreAddress(text)
    assert "eim" not in str(caught.value)
    assert "%2F" in str(caught.value)


@given(st.text(min_size=1), st.text(min_size=6))
def test_any_password_is_accepted_and_hidden(user: str, password: str) -> None:
    """The password is percent-encoded, as the refusal advises."""
    try:
        written = [quote(part, safe="") for part in (user, password)]
    except UnicodeEncodeError:  # A lone surrogate can't be percent-encoded.
        return
    shown = str(StoreAddress(f"postgresql://{written[0]}:{written[1]}@-/-"))
    assert shown == f"postgresql://{written[0]}@-/-"
