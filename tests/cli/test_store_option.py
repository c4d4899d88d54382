"""`--store`: a trace on a server, wherever a trace file can be named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from callboard import PriceTable
from tests.support.engines import running
from tests.support.postgres_server import PostgresServer
from tests.support.scripted import Say
from callboard.tracestore import PostgresStore

from .running import PRICES, call


def make_shared_trace(dsn: str) -> None:
    """Two calls in one session, on a server."""

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
    """As an output may name it."""
    parts = urlsplit(dsn)
    return f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"


def test_it_names_the_trace_and_hides_the_password(shared: str, home: Path) -> None:
    """In the option, and in the variable."""
    named = call("traces", "--store", shared, home=home, exits=0)
    assert shown(shared) in named.stdout
    assert shared not in named.stdout
    by_variable = call("traces", home=home, more={"CALLBOARD_STORE": shared}, exits=0)
    assert by_variable.stdout == named.stdout


def test_a_named_file_goes_before_the_variable(shared: str, traced: Path) -> None:
    """Whoever types a name means it."""
    more = {"CALLBOARD_STORE": shared}
    rows = call("traces", "--json", "--db", str(traced / "trace.db"), home=traced, more=more, exits=0)
    assert len(rows.stdout.splitlines()) == 3


def test_one_of_both_is_enough(shared: str, home: Path) -> None:
    """A file and a server are two traces; and each option says so of the other's names."""
    both = call("cost", "--store", shared, "--db", "x.db", home=home, exits=2)
    assert "not allowed with" in both.stderr
    swapped = call("cost", "--db", shared, home=home, exits=2)
    assert "--store" in swapped.stderr
    for done in (both, swapped):
        assert str(urlsplit(shared).password) not in done.stderr.replace("'--db'", "")


def test_without_the_driver_it_says_what_to_install(shared: str, home: Path) -> None:
    """In one line."""
    done = call("traces", "--store", shared, home=home, without="psycopg", exits=1)
    assert "pip install 'callboard[postgres]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert str(urlsplit(shared).password) not in done.stderr


@pytest.mark.parametrize(
    "command", ["traces", "doctor --offline", "prune --older-than 1d", "reprice --undo", "sql 1"]
)
def test_a_server_that_is_not_there_is_an_error_of_one_line(command: str, home: Path) -> None:
    """Not a traceback, and not the password."""
    address = "postgresql://me:Geheimwort@127.0.0.1:1/trace"
    done = call(*command.split(), "--store", address, home=home, exits=1)
    said = done.stdout + done.stderr
    assert "127.0.0.1" in said
    assert "Traceback" not in said
    assert "Geheim" not in said


def test_a_wrong_password_is_said_and_not_shown(shared: str, home: Path) -> None:
    """As the server says it."""
    wrong = shared.replace(str(urlsplit(shared).password), "Geheimwort")
    done = call("traces", "--store", wrong, home=home, exits=1)
    assert "password authentication failed" in done.stderr
    assert "Geheim" not in done.stderr


@pytest.mark.parametrize("by_variable", [False, True])
def test_an_address_that_cannot_be_read_is_not_quoted(by_variable: bool, home: Path) -> None:
    """A part of it may be that of a password."""
    address = "postgresql://me:Ge/heim@host/db"
    words, more = (("cost",), {"CALLBOARD_STORE": address}) if by_variable else (("cost", "--store", address), {})
    done = call(*words, home=home, more=more, exits=2)
    assert "can't be read" in done.stderr
    assert "heim" not in done.stderr


def test_a_database_without_a_trace_stays_as_it_is(postgres_dsn: str, home: Path) -> None:
    """Neither reading nor repricing makes one."""
    for command in ("traces", "reprice --undo", "prune --older-than 1d"):
        done = call(*command.split(), "--store", postgres_dsn, home=home, exits=1)
        assert "Traceback" not in done.stderr
    tables = "select count(*) from pg_namespace where nspname = 'callboard'"
    import psycopg

    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(tables).fetchall() == [(0,)]


def test_a_copy_is_made_by_the_servers_own_tool(shared: str, home: Path) -> None:
    """Which the error names, with the address to give it."""
    done = call("backup", "copy.db", "--store", shared, home=home, exits=2)
    assert f"pg_dump --format=custom --file=copy.db {shown(shared)}" in done.stderr


def test_a_repricing_can_be_taken_back_as_it_says(shared: str, home: Path) -> None:
    """The command that it shows is right but for the password."""
    done = call("reprice", "--prices", str(PRICES), "--store", shared, home=home, exits=0)
    assert f"reprice --undo --store {shown(shared)}" in done.stdout
    undone = call("reprice", "--undo", "--store", shared, home=home, exits=0)
    assert "Undone" in undone.stdout


def test_doctor_says_how_the_server_does(shared: str, home: Path) -> None:
    """Its version, whether the way to it is encrypted, and what the trace holds."""
    done = call("doctor", "--offline", "--json", "--store", shared, home=home)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["store"]["ok"]
    assert "PostgreSQL" in found["store"]["detail"]
    assert found["store:tls"]["ok"]
    assert found["store:writable"]["ok"]
    assert shown(shared) == json.loads(done.stdout)["places"]["trace"]
